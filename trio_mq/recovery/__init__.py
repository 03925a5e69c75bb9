"""From files as a process left them to a store that may be appended to: scan, plan, apply, replay, report."""

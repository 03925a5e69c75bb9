"""Pop consumption: messages handed out for a time, with a receipt, instead of queues handed to consumers."""

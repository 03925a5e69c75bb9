"""Looking into a store without a broker: list, read, verify, export; and appending an export to another one.

A room beside ``recovery``: it knows ``store``, ``recovery`` and ``protocol``, and nobody but the joining modules
and the command line knows it. Everything but the import only reads.
"""

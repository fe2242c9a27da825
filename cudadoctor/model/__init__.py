"""The vocabulary: machine, findings, plan, versions, documents. Values only, no I/O."""

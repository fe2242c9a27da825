"""`fix` and `setup`: environments are changed or made as transactions that leave nothing half."""

"""`--verify`: asks a real resolver whether the plan's packages can be had together."""

"""Which build of torch fits this machine, and why not another."""

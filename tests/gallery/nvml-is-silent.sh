#!/bin/sh
# cudadoctor 0.0.0, knowledge of 2026-01-01
# examined: /home/ada/venv/bin/python
#

# The facts do not suffice for a repair. The next command to run is: /home/ada/venv/bin/python
# -c 'import torch; print(torch.cuda.device_count())'

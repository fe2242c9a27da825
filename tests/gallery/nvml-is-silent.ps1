# cudadoctor 0.0.0, knowledge base of 2026-01-01
# python: /home/ada/venv/bin/python
#

# There is not enough information to suggest a fix.
# Run this first, then run cudadoctor again:
#    /home/ada/venv/bin/python -c 'import torch; print(torch.cuda.device_count())'
exit 1

# cudadoctor 0.0.0, knowledge of 2026-01-01
# examined: /home/ada/venv/bin/python
#
# error: CUDA_VISIBLE_DEVICES="" hides every GPU
#   CUDA shows a program only the GPUs that this variable lists, so torch sees 0 of 1.
#
# warning: This process may open 256 files at most
#   DataLoader workers pass tensors as open files, and fewer than 1024 run out soon.
#

# 1. Unset CUDA_VISIBLE_DEVICES (this shell only)
#    Lasts for this shell; to keep it, remove the line that sets it from the shell's start-up
#    file or the job script.
#    Type this in your own shell too: a script cannot:
set -e CUDA_VISIBLE_DEVICES

# 2. Allow more open files (by hand)
#    Raise the limit: `ulimit -n 65536` in the shell, `--ulimit nofile=65536` for a container.

# Then check again:
#    cudadoctor check --python /home/ada/venv/bin/python

printf '%s\n' 'Allow more open files (by hand):'
printf '%s\n' '  Raise the limit: `ulimit -n 65536` in the shell, `--ulimit nofile=65536` for a container.'
exit 1

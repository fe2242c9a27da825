# cudadoctor 0.0.0, knowledge of 2026-01-01
# examined: /home/ada/venv/bin/python
#
# error: The host has an NVIDIA GPU, and this container was started without it
#   Device nodes or driver libraries are missing inside, so torch finds no driver.
#

# 1. Start the container with the GPU (outside the container)
#    Start the container with `docker run --gpus all ...` (Compose: `gpus: all`).
#    The host needs the nvidia-container-toolkit package, `nvidia-ctk runtime configure
#    --runtime=docker` once as root, and a restart of Docker.

# Then check again:
#    cudadoctor check --python /home/ada/venv/bin/python

printf '%s\n' 'Start the container with the GPU (outside the container):'
printf '%s\n' '  Start the container with `docker run --gpus all ...` (Compose: `gpus: all`).'
exit 1

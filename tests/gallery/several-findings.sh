#!/bin/sh
# cudadoctor 0.0.0, knowledge base of 2026-01-01
# python: /home/ada/venv/bin/python
#
# error: CUDA_VISIBLE_DEVICES="" hides every GPU
#   Programs see only the GPUs listed in CUDA_VISIBLE_DEVICES, so torch sees 0 of 1. nvidia-smi
#   ignores the variable and shows all GPUs.
#
# warning: The open-file limit is 256 (ulimit -n)
#   DataLoader workers share tensors through file descriptors. With a limit below 1024, they
#   soon fail with "Too many open files".
#
set -eu

# 1. Unset CUDA_VISIBLE_DEVICES (this shell only)
#    To make this permanent, use `grep -n CUDA_VISIBLE_DEVICES ~/.bashrc ~/.profile ~/.zshrc
#    /etc/environment /etc/profile.d/*` to find the line that sets the variable, then edit or
#    delete it.
#    A script cannot set your shell's variables, so run this in your shell too:
unset CUDA_VISIBLE_DEVICES

# 2. Raise the open-file limit in this shell (this shell only)
#    Start your program from the same shell. For a batch job, add this command to the job
#    script. If the shell rejects the new limit, the hard limit is lower; raise the limit
#    permanently instead.
#      ulimit -n 65536
# Or: Raise the open-file limit permanently (needs root)
#    Log out and back in. For a systemd service, set `LimitNOFILE=65536` in its unit file.
#      printf '%s\n' 'ada soft nofile 65536' 'ada hard nofile 1048576' | sudo tee /etc/security/limits.d/90-nofile.conf >/dev/null

# Then check again:
#    cudadoctor check --python /home/ada/venv/bin/python

cat <<'END'
Raise the open-file limit in this shell (this shell only):
  ulimit -n 65536
END
exit 1

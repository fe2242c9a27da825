# cudadoctor 0.0.0, knowledge base of 2026-01-01
# python: C:\Users\ada\venv\Scripts\python.exe
#
# error: torch 2.14.1+cpu is a CPU-only build and cannot use your RTX 4090
#   A CPU build contains no CUDA code, so torch.cuda.is_available() is False with any driver.
#

# This runs in an empty folder so that Python does not import files from the current one.
set HERE $PWD; cd /; set empty (mktemp -d); or exit $status
function leave --on-event fish_exit; cd /; rmdir $empty; end
cd $empty; or exit $status

# 1. Install the cu130 build of torch 2.14.1 (changes this environment)
#    You can keep torch 2.14.1: its cu130 build is compatible with this machine.
#    The default build of torch 2.14.1 for this platform is CPU-only.
'C:\\Users\\ada\\venv\\Scripts\\python.exe' -m pip uninstall -y torch torchvision; or exit $status
'C:\\Users\\ada\\venv\\Scripts\\python.exe' -m pip install torch==2.14.1 torchvision==0.29.1 --index-url https://download.pytorch.org/whl/cu130; or exit $status

# Then check again:
#    cudadoctor check --python 'C:\\Users\\ada\\venv\\Scripts\\python.exe'

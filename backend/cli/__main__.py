"""`python -m backend.cli`"""

from backend.cli.main import main

main()

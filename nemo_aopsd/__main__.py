"""`python -m nemo_aopsd`: the `aopsd` command where it is not installed, as in a stock NeMo RL container."""

from nemo_aopsd.cli import main

if __name__ == "__main__":
    main()

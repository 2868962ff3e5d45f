"""psnb and its peers on the same work, in one run: ``make bench`` writes docs/performance/peers.md.

Each peer has a process, and most an environment of their own (`environments`). psnb and one peer at
a time are up, and work in turn: each round gives a ratio, for the machine may be faster now than
later. `plan` says who does what beside whom, `talking` how the processes are asked, `page` what is
written. What a peer does is in the module of its name in `peers`.
"""

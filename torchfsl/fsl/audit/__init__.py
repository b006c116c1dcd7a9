"""An auditor's part: what a server hands it of a round, and the replay of that server's share.

Read `transcript`, then `replay`. A transcript shows all that its server saw. What never breaks: a
server is named for what it has signed and for nothing else, and nothing here says a value or seed.
"""

"""The library inside the frameworks of others: `flower`, `ray`.

Each folder needs the framework it is named after, and imports nothing of it but its public
packages. Nothing below imports this wing, so that the library never loads a framework by itself.

Invariant: Flower carries round numbers and metrics, arrays go to the two servers alone; a cluster
of Ray belongs to one of the servers, and sees what that server sees.
"""

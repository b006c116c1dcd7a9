"""torchfsl inside other frameworks: `flower`, `ray`.

Each package needs the framework of the same name, and imports only public packages of this
framework. No lower layer imports this package, so torchfsl never loads a framework unasked.

Invariant: Flower carries round numbers and metrics, and arrays go to the two servers alone. A
cluster of Ray belongs to one of the servers, and sees what that server sees.
"""

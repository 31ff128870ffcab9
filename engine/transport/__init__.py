"""Bytes between a client process and a device process: shared memory, rings, records,
channels, links and the control socket.

Runs in both processes. May import the ground (errors, tensor, faults) and no other
package of PopGate.
"""

"""Decides which server of a fleet loads which version. Pure functions on values.

A *rollout* takes one version through the fleet in *waves*: steps that follow one another, each on more servers
than the step before. The *members* of a rollout are the servers that try its version. The *size* of a wave says
how many members the wave needs; in the last wave every server is a member. The *controls* are servers that
still answer with the stable version. The requests of the members are compared with the requests of the
controls.
"""

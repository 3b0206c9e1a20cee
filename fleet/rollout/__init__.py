"""Decides which server of a fleet loads which version. Pure functions on values.

A *rollout* is the way of one version through the fleet. It has *waves*: steps one after the other, each with
more servers than the one before. The *members* of a rollout are the servers that try its version. The *size*
of a wave says how many members it needs, and in the last wave every server is one. The *controls* are other
servers, whose requests are compared with those of the members.
"""

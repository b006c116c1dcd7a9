"""Tests of one party's evaluation over many shards."""

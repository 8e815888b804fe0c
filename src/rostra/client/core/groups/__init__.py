"""Membership in consumer groups: assignment, acknowledgement, redelivery."""

"""How objects are packed into stripe groups: plans, the two policies, size classes and the bounds on utilisation."""

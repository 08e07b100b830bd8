"""`nos-ec capacity`: the hosts, disks and databases that a load needs (docs/CAPACITY.md).

Import from the modules of this package.
"""

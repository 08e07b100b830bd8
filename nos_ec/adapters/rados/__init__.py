"""Block store and landing store on Ceph pools, through librados."""

"""Google's REST APIs: one session, its errors, and the resources that are described, created and deleted."""

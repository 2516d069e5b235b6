"""Who may connect, who somebody is, and what they may do: settings, TLS, credentials, access control."""

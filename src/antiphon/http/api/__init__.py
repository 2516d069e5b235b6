"""What the dashboard shows, and what operators decide, as JSON under `/api/`, with an OpenAPI document of it."""

"""Operations: what a member of the team can do, each declared once (`declaration`).

A declaration gives the JSON route, the form of a page, the role check and the audit entry (`routes`). The OpenAPI
document that describes the routes gives the command (`cli.derived`), the method of the Python client
(`scripts/client.py`) and the tool for agents (`tools`).
"""

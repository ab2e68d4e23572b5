from browsergym.core.site import register

for name in ("all-menu", "create-user"):
    register(f"workarena.servicenow.{name}")

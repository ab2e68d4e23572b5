"""Mail: folders, search, send, reply."""

from __future__ import annotations

from typing import Any

from agentgym_environments.synthetic.tools.apps.desk import AppState, holds
from agentgym_environments.synthetic.tools.registry import Address, CallRefused, Id, Line, Page, Text, page_of, tool


@tool
def mail_folders(desk: AppState) -> Any:
    """The folders and how many mails each has."""
    rows = desk.db.rows("SELECT folder, COUNT(*) AS mails FROM mails GROUP BY folder ORDER BY folder")
    return {row["folder"]: row["mails"] for row in rows}


@tool
def mail_search(desk: AppState, text: Line = "", sender: Line = "", folder: Line = "", page: Page = 1) -> Any:
    """Mails whose subject or body has all the words of text, newest first, without their bodies. sender is a name or
    address, or part of one; an empty argument does not filter."""
    rows = desk.db.rows("SELECT * FROM mails ORDER BY at DESC, id DESC")
    found = [
        {"id": row["id"], "folder": row["folder"], "from": row["sender"], "to": row["recipient"]}
        | {"subject": row["subject"], "at": row["at"]}
        for row in rows
        if holds(text, row["subject"], row["body"])
        and holds(sender, row["sender"])
        and folder.casefold() in ("", row["folder"].casefold())
    ]
    return page_of(found, page)


@tool
def mail_read(desk: AppState, mail: Id) -> Any:
    """A mail with its body."""
    row = desk.get("mails", mail)
    return {"id": mail, "folder": row["folder"], "from": row["sender"], "to": row["recipient"]} | {
        name: row[name] for name in ("subject", "at", "body", "reply_to")
    }


@tool
def mail_send(desk: AppState, to: Address, subject: Line, body: Text, reply_to: Id | None = None) -> Any:
    """Send a mail to one address. reply_to is the id of the mail that it answers."""
    if not body.strip():
        raise CallRefused("the mail has no body")
    if reply_to is not None:
        desk.get("mails", reply_to)
    values = {"folder": "sent", "sender": f"{desk.name} <{desk.email}>", "recipient": to.casefold()}
    sent = desk.db.add("mails", **values, subject=subject, body=body, at=desk.now, reply_to=reply_to)
    return {"sent": sent}


@tool
def mail_move(desk: AppState, mail: Id, folder: Line) -> Any:
    """Move a mail to a folder that exists (see mail_folders)."""
    folders = {row["folder"] for row in desk.db.rows("SELECT DISTINCT folder FROM mails")}
    desk.get("mails", mail)
    if folder.casefold() not in folders:
        raise CallRefused(f"there is no folder {folder!r}; there are {', '.join(sorted(folders))}")
    desk.db.change("mails", mail, folder=folder.casefold())
    return {"moved": mail, "folder": folder.casefold()}


@tool
def mail_delete(desk: AppState, mail: Id) -> Any:
    """Delete a mail permanently."""
    desk.get("mails", mail)
    desk.db.delete("mails", mail)
    return {"deleted": mail}

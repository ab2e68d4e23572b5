"""Settings that every episode begins with. They keep applications from telling the time, the machine or each other."""

from __future__ import annotations

SIZE = (800, 600)
"""Width and height of the screen in pixels."""

OPENBOX = """<?xml version="1.0"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
<focus><focusNew>yes</focusNew><focusLast>yes</focusLast></focus>
<placement><policy>Smart</policy><center>yes</center></placement>
<theme><name>Clearlooks</name><titleLayout>LMC</titleLayout></theme>
<desktops><number>1</number><popupTime>0</popupTime></desktops>
<keyboard>
<keybind key="A-F4"><action name="Close"/></keybind>
<keybind key="A-Tab"><action name="NextWindow"><dialog>none</dialog><finalactions><action name="Focus"/>
<action name="Raise"/></finalactions></action></keybind>
</keyboard>
<mouse>
<context name="Titlebar">
<mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
<mousebind button="Left" action="Drag"><action name="Move"/></mousebind>
</context>
<context name="Client">
<mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
<mousebind button="Right" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
</context>
<context name="Close"><mousebind button="Left" action="Click"><action name="Close"/></mousebind></context>
<context name="Maximize"><mousebind button="Left" action="Click"><action name="ToggleMaximize"/></mousebind></context>
</mouse>
</openbox_config>
"""

GTK3 = """[Settings]
gtk-cursor-blink=0
gtk-enable-animations=0
gtk-double-click-time=450
gtk-recent-files-enabled=0
gtk-can-change-accels=0
"""

GTK2 = """gtk-cursor-blink=0
gtk-enable-animations=0
gtk-double-click-time=450
gtk-enable-tooltips=0
gtk-recent-files-max-age=0
gtk-icon-theme-name="Adwaita"
"""

SETTINGS = """[org/xfce/mousepad/preferences/window]
path-in-title=false
statusbar-visible=false
[org/xfce/mousepad/preferences/file]
autosave-timer=uint32 0
session-restore='never'
monitor-changes=false
[org/gtk/settings/file-chooser]
startup-mode='cwd'
"""

LIBFM = """[config]
single_click=0
use_trash=0
confirm_del=1
no_child_non_expandable=1
[ui]
show_thumbnail=0
[places]
places_home=1
places_desktop=0
places_root=0
places_computer=0
places_trash=0
places_applications=0
places_network=0
places_unmounted=0
"""

PCMANFM = """[config]
bm_open_method=0
[volume]
mount_on_startup=0
mount_removable=0
autorun=0
[ui]
win_width=640
win_height=480
splitter_pos=130
side_pane_mode=1
view_mode=icon
show_hidden=0
sort=name;ascending;
show_statusbar=0
pathbar_mode_buttons=0
"""

MIME = """[Default Applications]
text/plain=org.xfce.mousepad.desktop
application/octet-stream=org.xfce.mousepad.desktop
"""

CONFIGURATION = {
    ".config/openbox/rc.xml": OPENBOX,
    ".config/gtk-3.0/settings.ini": GTK3,
    ".config/glib-2.0/settings/keyfile": SETTINGS,
    ".config/libfm/libfm.conf": LIBFM,
    ".config/pcmanfm/default/pcmanfm.conf": PCMANFM,
    ".config/mimeapps.list": MIME,
    ".gtkrc-2.0": GTK2,
}
"""Files of a home, by path."""

WINDOW_MANAGER = ["openbox", "--sm-disable", "--config-file", "@HOME@/.config/openbox/rc.xml"]
COMMANDS = {
    "editor": "mousepad",
    "calculator": "galculator",
    "files": "pcmanfm",
}
FOLDER = "Documents"
"""Folder of home in which tasks are played."""

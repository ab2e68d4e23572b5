from browsergym.core.site import register

for number in range(1, 5):
    register(f"webarena.{number}", number=number, picture=number == 3)

"""x"""

import attrs


@attrs.define
class Go:
    driver: object

    def close(self):
        pass

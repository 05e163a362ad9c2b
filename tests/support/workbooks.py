"""Excel workbooks written by hand, for what no program would write."""

import zipfile
from pathlib import Path

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def crafted(path: Path, cells: str, packing: int = zipfile.ZIP_DEFLATED, /, **parts: str) -> Path:
    """A workbook: the inside of its sheetData, and other parts of xl/ where given."""
    files = {
        "_rels/.rels": (
            f'<R><Relationship Id="1" Type="{REL}/officeDocument" Target="/xl/workbook.xml"/></R>'
        ),
        "xl/workbook.xml": (
            f'<workbook xmlns:r="{REL}"><sheets><sheet name="s" r:id="a"/></sheets></workbook>'
        ),
        "xl/_rels/workbook.xml.rels": (
            f'<R><Relationship Id="a" Type="{REL}/worksheet" Target="worksheets/s.xml"/>'
            f'<Relationship Id="b" Type="{REL}/sharedStrings" Target="strings.xml"/>'
            f'<Relationship Id="c" Type="{REL}/styles" Target="styles.xml"/></R>'
        ),
        "xl/worksheets/s.xml": (
            f'<worksheet xmlns="{MAIN}"><sheetData>{cells}</sheetData></worksheet>'
        ),
    }
    files |= {
        f"xl/{name}" if "." in name else f"xl/{name}.xml": text for name, text in parts.items()
    }
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path

"""Draws the pictures of the pages, in light and dark: `python -m docs.pictures`.

A browser shows a picture in the scheme of the page around it. All pictures are narrow, so that they can be read on a
phone; `integration_tests/test_site.py` checks in a browser that text fits its box.
"""

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH = 480

STYLE = """
    text { font: 14px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #16302e; }
    .h { font-weight: 600; }
    .s { font-size: 12.5px; fill: #44605d; }
    .m { font: 12px ui-monospace, Consolas, "Liberation Mono", monospace; }
    .ground { fill: #f4f8f7; }
    .box { fill: #ffffff; stroke: #2f7f78; stroke-width: 1.5; }
    .soft { fill: #e3f1ef; stroke: #9cc9c3; }
    .gray { fill: #eceff0; stroke: #8a9a9c; }
    .lost { fill: #fbeae6; stroke: #b5533c; stroke-width: 1.5; stroke-dasharray: 5 4; }
    .main { fill: #c9e6e1; stroke: #0b6b63; stroke-width: 2.5; }
    .line { fill: none; stroke: #2f7f78; stroke-width: 1.5; }
    .slow { fill: none; stroke: #b5533c; stroke-width: 1.5; }
    .tip { fill: #2f7f78; }
    .slowtip { fill: #b5533c; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e3f1ef; }
      .s { fill: #a9c4c0; }
      .ground { fill: #14211f; }
      .box { fill: #1d302d; stroke: #5fb8af; }
      .soft { fill: #1a2b28; stroke: #3c6f69; }
      .gray { fill: #2a3334; stroke: #78898b; }
      .lost { fill: #3a2420; stroke: #e08a72; }
      .main { fill: #24504a; stroke: #8ad4cc; }
      .line { stroke: #5fb8af; }
      .slow { stroke: #e08a72; }
      .tip { fill: #5fb8af; }
      .slowtip { fill: #e08a72; }
    }
  """
TIPS = "".join(
    f'    <marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
    f'orient="auto-start-reverse"><path class="{name}" d="M0 0 L8 4 L0 8 z"/></marker>\n'
    for name in ("tip", "slowtip")
)


class Picture:
    """A picture that is being drawn, from top to bottom."""

    def __init__(self, title: str, description: str, height: int) -> None:
        self.height = height
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * 7 // 6}" viewBox="0 0 {WIDTH} {height}"',
            '  role="img" aria-labelledby="t d">',
            f'  <title id="t">{escape(title)}</title>\n  <desc id="d">{escape(description)}</desc>',
            f"  <style>{STYLE}</style>\n  <defs>\n{TIPS}  </defs>",
            f'  <rect class="ground" width="{WIDTH}" height="{height}" rx="10"/>',
        ]

    def box(
        self, x: int, y: int, width: int, *texts: str, kind: str = "box", height: int | None = None
    ) -> None:
        """Draw a box with lines of text: the first is a heading, and a line in backticks is code."""
        height = height or 12 + 17 * len(texts)
        self._lines.append(
            f'  <g><rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        )
        top = y + (height - 17 * len(texts)) / 2 + 13
        for number, text in enumerate(texts):
            self.text(x + 8, top + 17 * number, text, "s" if number else "h")
        self._lines.append("  </g>")

    def text(self, x: float, y: float, text: str, kind: str = "s", anchor: str = "start") -> None:
        """Draw a line of text; in backticks it is code."""
        kind = "m" if text.startswith("`") else kind
        self._lines.append(
            f'    <text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text.strip("`"))}</text>'
        )

    def arrow(self, *points: tuple[float, float], slow: bool = False, both: bool = False) -> None:
        """Draw an arrow along the points; `slow` is the colour of warnings."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        tip = "slowtip" if slow else "tip"
        start = f' marker-start="url(#{tip})"' if both else ""
        kind = "slow" if slow else "line"
        self._lines.append(f'  <path class="{kind}" d="M{path}" marker-end="url(#{tip})"{start}/>')

    def svg(self) -> str:
        """The file's text."""
        return "\n".join([*self._lines, "</svg>\n"])


def overview() -> Picture:
    """State in Spark and in Holdfast."""
    picture = Picture(
        "State in Spark and in Holdfast",
        "In Spark each access from a Python worker is a request to a state store in the JVM. In Holdfast the state is "
        "in the worker, in Arrow columns; each micro-batch commits one _metadata file on a local disk, S3 or HDFS, from "
        "which you can rescale, roll back, fork or move the query, or read its state.",
        300,
    )
    picture.text(8, 22, "Spark", "h")
    picture.box(8, 32, 116, "Python worker", "your code", kind="gray")
    picture.arrow((128, 55), (194, 55), slow=True, both=True)
    picture.text(161, 48, "a request", anchor="middle")
    picture.text(161, 74, "per access", anchor="middle")
    picture.box(198, 32, 112, "JVM store", "fixed partitions", kind="gray")
    picture.arrow((310, 55), (324, 55), slow=True)
    picture.box(326, 32, 146, "`checkpointLocation`", "keep it or delete it", kind="gray")
    picture.text(8, 112, "Holdfast", "h")
    picture.box(8, 122, 160, "Python worker", "your code and its state,", "in Arrow columns")
    picture.arrow((168, 153), (234, 153))
    picture.text(200, 146, "per batch", anchor="middle")
    picture.box(
        236,
        122,
        236,
        "`_metadata`",
        "state, batch, Spark's offsets:",
        "one commit on disk, S3 or HDFS",
        kind="main",
    )
    for x in (62, 180, 298, 416):
        picture.arrow((354, 185), (354, 216), (x, 216), (x, 238))
    picture.box(8, 240, 108, "rescale", "at any restart", kind="soft")
    picture.box(126, 240, 108, "roll back", "with Spark's log", kind="soft")
    picture.box(244, 240, 108, "fork, move", "while it runs", kind="soft")
    picture.box(362, 240, 110, "read, repair", "as a DataFrame", kind="soft")
    return picture


def commit() -> Picture:
    """The life of a micro-batch."""
    picture = Picture(
        "The commit of a micro-batch",
        "Spark plans batch 42 and records it in offsets/42; the driver opens checkpoint 43. Each subtask restores its state, "
        "processes rows, whose results go to the sink, and stores its new state in files. The driver collects a handle per "
        "subtask and publishes chk-43/_metadata, with the state, the batch and the offsets, in one step. Then Spark writes commits/42.",
        478,
    )
    for x, title in ((8, "Driver"), (166, "Executors"), (324, "Storage and sink")):
        picture.box(x, 8, 148, kind="soft", height=462)
        picture.text(x + 74, 29, title, "h", "middle")
    rows = [40 + 61 * row for row in range(7)]
    middle = [row + 23 for row in rows]
    picture.box(14, rows[0], 136, "1 Plan batch 42", "open chk-43")
    picture.box(330, rows[0], 136, "`offsets/42`", "Spark's log")
    picture.arrow((150, middle[0]), (328, middle[0]))
    picture.box(172, rows[1], 136, "2 Restore", "state of chk-42")
    picture.box(330, rows[1], 136, "State files", "or nearer copies")
    picture.arrow((82, rows[0] + 46), (82, middle[1]), (170, middle[1]))
    picture.arrow((330, middle[1]), (310, middle[1]))
    picture.box(172, rows[2], 136, "3 Process", "rows in, rows out")
    picture.box(330, rows[2], 136, "Sink", "replaces the batch")
    picture.arrow((240, rows[1] + 46), (240, rows[2] - 2))
    picture.arrow((308, middle[2]), (328, middle[2]))
    picture.box(172, rows[3], 136, "4 Store", "under new names")
    picture.box(330, rows[3], 136, "New state files", "not referenced yet")
    picture.arrow((240, rows[2] + 46), (240, rows[3] - 2))
    picture.arrow((308, middle[3]), (328, middle[3]))
    picture.box(14, rows[4], 136, "5 Collect", "a handle per subtask")
    picture.arrow((240, rows[3] + 46), (240, middle[4]), (152, middle[4]))
    picture.box(14, rows[5], 136, "6 Commit", "in one atomic step", kind="main")
    picture.box(330, rows[5], 136, "`chk-43/_metadata`", "handles, offsets", kind="main")
    picture.arrow((82, rows[4] + 46), (82, rows[5] - 2))
    picture.arrow((150, middle[5]), (328, middle[5]))
    picture.box(14, rows[6], 136, "7 Finish", "Spark ends the batch")
    picture.box(330, rows[6], 136, "`commits/42`", "Spark's log")
    picture.arrow((82, rows[5] + 46), (82, rows[6] - 2))
    picture.arrow((150, middle[6]), (328, middle[6]))
    return picture


def parts() -> Picture:
    """The parts of a checkpoint."""
    picture = Picture(
        "The parts of a checkpoint",
        "In the directory of a job, chk-43/_metadata contains a handle for each subtask, the batch and Spark's offsets. A handle "
        "references a state file by name, length and checksums; small state is in the handle itself.",
        268,
    )
    picture.box(118, 8, 354, kind="soft", height=252)
    picture.text(130, 30, "`file:///data/holdfast/totals/chk-43/`")
    picture.box(268, 44, 192, kind="main", height=204)
    picture.text(280, 66, "`_metadata`")
    picture.box(8, 76, 94, "subtask 0", "large state", kind="gray")
    picture.arrow((102, 99), (126, 99))
    picture.box(128, 76, 122, "state file", "`9c41d0aa-6f2…`")
    picture.arrow((278, 99), (252, 99))
    picture.box(280, 76, 168, "handle", "name, length, checksums")
    picture.box(8, 134, 94, "subtask 1", "small state", kind="gray")
    picture.arrow((102, 157), (278, 157))
    picture.box(280, 134, 168, "handle", "the state itself")
    picture.box(280, 192, 168, "batch 42", "Spark's offsets")
    picture.text(130, 200, "published")
    picture.text(130, 217, "in one atomic step:")
    picture.text(130, 234, "the commit")
    return picture


def owner() -> Picture:
    """The owner of a job."""
    picture = Picture(
        "The owner of a job",
        "Driver A claims epoch 7, commits chk-41 and hangs. Driver B claims epoch 8 and commits chk-42. When driver A wakes up, "
        "it finds epoch 8 and stops with an error before it commits.",
        334,
    )
    for x, title in ((8, "Driver A"), (166, "Storage"), (324, "Driver B")):
        picture.box(x, 8, 148, kind="soft", height=292)
        picture.text(x + 74, 29, title, "h", "middle")
    rows = [40, 88, 136, 190, 244]
    picture.box(14, rows[0], 136, "claims the job", height=34)
    picture.box(172, rows[0], 136, "`_epoch/7`", height=34)
    picture.arrow((150, rows[0] + 17), (170, rows[0] + 17))
    picture.box(14, rows[1], 136, "commits", height=34)
    picture.box(172, rows[1], 136, "`chk-41/_metadata`", height=34)
    picture.arrow((150, rows[1] + 17), (170, rows[1] + 17))
    picture.box(14, rows[2], 136, "hangs, cut off", kind="lost", height=92)
    picture.box(330, rows[2], 136, "claims the job", height=34)
    picture.box(172, rows[2], 136, "`_epoch/8`", kind="main", height=34)
    picture.arrow((330, rows[2] + 17), (310, rows[2] + 17))
    picture.box(330, rows[3], 136, "commits", height=34)
    picture.box(172, rows[3], 136, "`chk-42/_metadata`", height=34)
    picture.arrow((330, rows[3] + 17), (310, rows[3] + 17))
    picture.box(14, rows[4], 136, "finds epoch 8:", "stops with an error", kind="lost")
    picture.arrow(
        (150, rows[4] + 23),
        (161, rows[4] + 23),
        (161, rows[2] + 22),
        (170, rows[2] + 22),
        slow=True,
    )
    picture.text(8, 321, "Only one driver can take a name, and the highest epoch owns the job.")
    return picture


def rescale() -> Picture:
    """Redistribution over another number of subtasks."""
    picture = Picture(
        "Rescaling from two subtasks to three",
        "Keyed state: the 128 key groups are cut into three ranges instead of two, so a key in group 50 moves from subtask 0 to "
        "subtask 1, together with its rows. List state: elements are distributed evenly. Union list state: every subtask gets all "
        "elements. Broadcast state: every subtask gets one copy.",
        464,
    )

    def row(y: int, *parts: tuple[str, float, str]) -> None:
        x = 96.0
        for text, share, kind in parts:
            width = 376 * share
            picture.box(round(x), y, round(width) - 4, kind=kind, height=30)
            picture.text(x + width / 2 - 2, y + 20, text, "s", "middle")
            x += width

    panels = (
        (
            "Keyed state: each subtask owns a range of the key groups",
            (("0 to 63", 64 / 128, "box"), ("64 to 127", 64 / 128, "soft")),
            (
                ("0 to 42", 43 / 128, "box"),
                ("43 to 85", 43 / 128, "soft"),
                ("86 to 127", 42 / 128, "gray"),
            ),
        ),
        (
            "List state: elements are distributed evenly",
            (("a, b, c", 0.5, "box"), ("d, e, f", 0.5, "soft")),
            (("a, b", 1 / 3, "box"), ("c, d", 1 / 3, "soft"), ("e, f", 1 / 3, "gray")),
        ),
        (
            "Union list state: all elements go to every subtask",
            (("a", 0.5, "box"), ("b", 0.5, "soft")),
            (("a, b", 1 / 3, "box"), ("a, b", 1 / 3, "soft"), ("a, b", 1 / 3, "gray")),
        ),
        (
            "Broadcast state: every subtask gets one copy",
            (("a", 0.5, "box"), ("a", 0.5, "soft")),
            (("a", 1 / 3, "box"), ("a", 1 / 3, "soft"), ("a", 1 / 3, "gray")),
        ),
    )
    for number, (title, before, after) in enumerate(panels):
        y = 10 + 112 * number
        picture.text(8, y + 16, title, "h")
        picture.text(8, y + 46, "2 subtasks")
        picture.text(8, y + 92, "3 subtasks")
        row(y + 26, *before)
        row(y + 72, *after)
    group_50 = 96 + 376 * 50.5 / 128
    picture.arrow((group_50, 66), (group_50, 80), slow=True)
    picture.text(group_50 + 8, 78, "a key in group 50")
    return picture


def savepoint() -> Picture:
    """Fork and move by a savepoint."""
    picture = Picture(
        "A fork and a move by a savepoint",
        "A savepoint is one directory with copies of Spark's logs and state and of the state of the operators, as of one batch. "
        "Restored with a new query id it is a fork, which runs next to the original; restored with the same id it is the query itself, "
        "moved to another bucket or store.",
        266,
    )
    picture.box(8, 8, 464, kind="soft", height=82)
    picture.text(20, 28, "The query as of batch 42", "h")
    picture.box(20, 36, 214, "`checkpointLocation`", "Spark's logs and state")
    picture.box(246, 36, 214, "checkpoint directory", "state of the operators")
    picture.arrow((127, 82), (127, 106), (180, 106), (180, 118))
    picture.arrow((353, 82), (353, 106), (300, 106), (300, 118))
    picture.box(
        110,
        120,
        260,
        "`savepoint-totals-1f6b…/`",
        "copies of all files, with checksums",
        kind="main",
    )
    picture.arrow((180, 166), (180, 186), (121, 186), (121, 208))
    picture.arrow((300, 166), (300, 186), (359, 186), (359, 208))
    picture.box(8, 210, 226, "fork: a new query id", "runs next to the original")
    picture.box(246, 210, 226, "move: the same query id", "in another bucket or store")
    return picture


def rollback() -> Picture:
    """Rollback to a retained checkpoint."""
    picture = Picture(
        "A rollback",
        "A query has finished batches 41 to 44 and retains checkpoints 42 to 45. A rollback to checkpoint 43 deletes batches 43 and 44 "
        "from Spark's log and state together with checkpoints 44 and 45. The rows of these batches stay in the sink, and the next run "
        "sends batch 43 again.",
        236,
    )
    columns = [120, 208, 296, 384]
    picture.text(8, 51, "Spark's logs", "h")
    picture.text(8, 99, "Holdfast", "h")
    picture.text(8, 147, "Sink", "h")
    for number, x in enumerate(columns):
        kept = "lost" if number > 1 else "main" if number == 1 else "box"
        picture.box(x, 30, 80, f"`batch {41 + number}`", kind=kept, height=32)
        picture.box(x, 78, 80, f"`chk-{42 + number}`", kind=kept, height=32)
        picture.box(x, 126, 80, f"`rows {41 + number}`", height=32)
    picture.text(296, 21, "deleted together")
    picture.text(392, 180, "rows stay")
    picture.text(8, 211, "Next run", "h")
    picture.arrow((208, 94), (204, 94), (204, 206), (294, 206))
    picture.box(296, 190, 80, "`batch 43`", height=32)
    picture.arrow((336, 190), (336, 160))
    picture.text(384, 211, "sent again")
    return picture


PICTURES = (overview, commit, parts, owner, rescale, savepoint, rollback)

if __name__ == "__main__":
    for draw in PICTURES:
        (Path(__file__).parent / "images" / f"{draw.__name__}.svg").write_text(draw().svg())

"""Raw pages: stored in segments, found again by the results that name them."""

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import NamedTuple

from crawler.config import program
from crawler.db import losses, segments
from crawler.db.pending import later_results
from crawler.db.results import Results, commit_segment
from crawler.db.store import Part, Store
from crawler.models import UNCHANGED, Job, Outcome, Raw, TaskStatus


class MissingSegment(NamedTuple):
    """A segment that is not on the disk up to that byte, and what to say of it."""

    name: str
    end: int
    what: str


class RawPages(Part):
    """Appends pages to segments, reads them, and finds those that are gone.

    `keep` says which pages are stored: all, errors or none.
    """

    _store: Store

    def __init__(self, store: Store, keep: str) -> None:
        super().__init__(store)
        self._folder, self._keep = store.raw, keep
        self._results = Results(store)
        self._writers: dict[bool, segments.SegmentWriter] = {}
        """Of good pages (False) and of those in quarantine (True)."""
        self._is_newest: bool | None = None
        store.on_close(self._close)

    # Writing

    def append_outcomes(
        self, outcomes: Sequence[Outcome], digests: Sequence[str]
    ) -> list[Raw | None]:
        """Store the pages of outcomes that are to be kept; says where each is."""
        good: list[bytes | None] = [None] * len(outcomes)
        walls = list(good)
        for at, outcome in enumerate(outcomes):
            page = outcome.page
            if page and self._keeps(outcome):
                digest = digests[at]
                if page.raw is not page.body:
                    digest = sha256(page.raw).hexdigest()
                members = walls if outcome.quarantine else good
                members[at] = segments.packed(page, digest)
        places = zip(self.append(good), self.append(walls, quarantine=True), strict=True)
        return [place or wall for place, wall in places]

    def append(self, members: Sequence[bytes | None], quarantine: bool = False) -> list[Raw | None]:
        """Store these gzip members; says where each is, or None where there was none."""
        kept = [member for member in members if member is not None]
        if not kept:
            return [None] * len(members)
        if quarantine not in self._writers:
            self._writers[quarantine] = segments.SegmentWriter(
                self._folder,
                self._results.segment_end,
                self._store.now,
                quarantine=quarantine,
                may_cut=self._may_cut,
            )
        places = iter(self._writers[quarantine].append(kept))
        return [None if member is None else next(places) for member in members]

    def commit(self, now: float) -> None:
        """Note up to where the segments count. Part of the durable transaction."""
        for writer in self._writers.values():
            commit_segment(self._durable, writer.name, writer.end, now)

    def committed(self) -> None:
        """The transaction has been committed."""
        for writer in self._writers.values():
            writer.committed = True

    def cut(self) -> None:
        """Cut what killed writers left behind the committed ends of segments."""
        segments.mend(self._folder, self._results.segment_end, self._may_cut)

    def _keeps(self, outcome: Outcome) -> bool:
        if self._keep == "none" or outcome.verdict == UNCHANGED:
            return False
        return self._keep == "all" or outcome.status is not TaskStatus.COMPLETED

    def _may_cut(self) -> bool:
        """Whether the ledger is the newest; behind the ends that an older copy knows, pages are
        that were committed later."""
        if self._is_newest is None:
            later = later_results(self._db, self._store.pending)
            self._is_newest = next(later, None) is None
        return self._is_newest

    def _close(self) -> None:
        writers = list(self._writers.values())
        self._writers.clear()
        for writer in writers:
            writer.close()

    # Reading

    def read(self, task: int) -> tuple[str, bytes] | None:
        """The header block and body, as received, of a task's last page, unless it was pruned."""
        place = self._results.place_of(task)
        if place is None or not self._results.segment_end(place.segment):
            return None
        return segments.read(self._folder, place, self._results.page_url_at(task, place))

    def why_gone(self, task: int) -> str | None:
        """What became of the page of a task that is not there any more; None where none was."""
        place = self._results.place_of(task)
        if place is None or self._results.segment_end(place.segment):
            return None
        if self._results.was_pruned(place.segment):
            return "was removed by prune"
        unknown = f"was in {place.segment}, which the ledger does not know any more"
        return f"{unknown}; {program()} doctor tells more"

    def has_page(self, segment: str | None, end: int) -> bool:
        """Whether a result's page is there; where good pages are not kept, none need be."""
        if segment is None:
            return self._keep != "all"
        return self.has_segment(segment, end)

    def has_segment(self, name: str, end: int) -> bool:
        """Whether a segment is on the disk, up to that byte."""
        try:
            about = os.stat(f"{self._folder}/{name}")  # noqa: PTH116 - for every page
        except OSError:
            return False
        return stat.S_ISREG(about.st_mode) and about.st_size >= end

    def has_all(self) -> bool:
        """Whether all segments are on the disk."""
        return all(self.has_segment(name, end) for name, end in self._results.segment_ends())

    def is_given_up(self, place: Raw, job: Job | None) -> bool:
        """Whether a page is not on the disk, and a job, or any, does without it."""
        end = place.offset + place.length
        if self.has_segment(place.segment, end):
            return False
        return end <= losses.given_up(self._db, job, place.segment)

    def missing(self) -> list[str]:
        """What of the pages that results name is not on the disk; cheap where all of it is."""
        if self.has_all():
            return []
        return [missing.what for missing in self.missing_segments(None)]

    def missing_segments(self, job: Job | None) -> list[MissingSegment]:
        """The segments that lack pages which somebody wants."""
        wanted = losses.wanted(self._db, job) if job else losses.WANTED_BY_ANY
        pages = f"pages of {'its' if job else 'the'} results"
        return [
            MissingSegment(
                name,
                end,
                f"the segment {name}, with {count:,} {pages}, "
                f"is missing or shorter than {end:,} bytes",
            )
            for name, end, count in self._results.segments_used(job, wanted)
            if not self.has_segment(name, end)
        ]

    def unreadable(self, job: Job) -> Iterator[str]:
        """What to say where no page begins at the places of a job's results.

        Only `doctor` reads pages to their ends.
        """
        places = self._results.page_places(job, losses.wanted(self._db, job))
        count = 0
        for name, found in itertools.groupby(places, key=itemgetter(0)):
            path = self._folder / name
            with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
                count += sum(
                    os.pread(file.fileno(), 4, offset) != segments.GZIP for _, offset in found
                )
        if count:
            what = f"{count:,} stored pages of its results cannot be read"
            yield f"{what}; {program()} doctor --repair tells more"

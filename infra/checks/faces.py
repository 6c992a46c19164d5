"""An import contract: other packages only see the names in a package's `__init__`, not its modules.

A module is open to its own package and to all below that. From elsewhere, a package is entered by its face:
one directly in a layer (`holdfast.locations.storages`) from everywhere, one further in
(`holdfast.backends.keyed.segments`) only from the package around it.
"""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class FacesContract(Contract):
    """Refuses imports of modules that reach past the face of their package.

    Options:
        depth: How many names a face has at most that is open to every package.
        open_modules: Modules that are used as modules from everywhere.
    """

    type_name = "faces"

    depth = fields.IntegerField(minimum=1)
    open_modules = fields.SetField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002, FBT001  # the port's
        depth: int = self.depth  # type: ignore[assignment]  # fields become their values
        open_modules: set[str] = self.open_modules or set()  # type: ignore[assignment]
        past = [
            (importer, imported)
            for importer in sorted(graph.modules)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if not graph.is_module_squashed(imported)
            and imported not in open_modules
            and not _is_open(graph, importer, imported, depth)
        ]
        return ContractCheck(kept=not past, metadata={"past": past})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for importer, imported in check.metadata["past"]:
            face = imported.rpartition(".")[0]
            output.print_error(f"{importer} imports {imported}; import from {face} instead")


def _is_open(graph: ImportGraph, importer: str, imported: str, depth: int) -> bool:
    """Return whether one module may import the other."""
    package = imported.rpartition(".")[0]
    if not package or f"{importer}.".startswith(f"{package}."):
        return True
    parts = imported.count(".") + 1
    return parts <= 2 or (parts <= depth and bool(graph.find_children(imported)))

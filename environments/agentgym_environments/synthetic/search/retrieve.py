"""Search-R1's retriever over the library of these environments:

    python -m agentgym_environments.synthetic.search.retrieve --port 8000

POST /retrieve {"queries": [str], "topk"?: int, "return_scores"?: bool} answers {"result": [[...], ...]}: for each query
a list of {"document": {"id", "contents"}, "score"} with scores, of bare documents without.
"""

from __future__ import annotations

from typing import Any

import click
from pydantic import BaseModel, Field

from agentgym.errors import MissingDependency, UsageError
from agentgym_environments.backends.retrieval.index import Retriever
from agentgym_environments.synthetic.search.library import library


class Questions(BaseModel):
    queries: list[str] = Field(max_length=1024)
    topk: int | None = Field(default=None, ge=1, le=100)
    """3 where none is given, as Search-R1's server does by default."""
    return_scores: bool = False


def app(retriever: Retriever, topk: int = 3) -> Any:
    """A FastAPI application: to be served, or mounted into another. Raises MissingDependency without FastAPI."""
    try:
        from fastapi import FastAPI
    except ModuleNotFoundError as error:
        raise MissingDependency(f"/retrieve needs {error.name}: pip install 'turngym[search,serve]'") from error
    made = FastAPI(title="retrieve")

    @made.post("/retrieve")
    def retrieve(request: Questions) -> dict[str, Any]:
        count = request.topk or topk
        return {"result": [_answer(retriever, query, count, request.return_scores) for query in request.queries]}

    @made.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    return made


def _answer(retriever: Retriever, query: str, count: int, scores: bool) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = []
    for document, score in retriever.search(query, count):
        bare = {"id": document.id, "contents": document.contents}
        answer.append({"document": bare, "score": score} if scores else bare)
    return answer


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True)
@click.option("--smallest", default=15000, show_default=True, help="Least population of a city in the library.")
@click.option("--topk", default=3, show_default=True, help="Documents for a query that does not say how many.")
@click.option("--model", help="Folder of a transformers encoder: dense retrieval instead of BM25.")
@click.option("--query-prefix", default="", help="What the encoder wants before a query.")
@click.option("--passage-prefix", default="", help="What the encoder wants before a passage.")
def main(
    host: str, port: int, smallest: int, topk: int, model: str | None, query_prefix: str, passage_prefix: str
) -> None:
    """Serve POST /retrieve until interrupted."""
    try:
        books = library(smallest)
        retriever: Retriever = books.bm25
        if model:
            from agentgym_environments.backends.retrieval.dense import Dense

            retriever = Dense(books.bm25.documents, model, query_prefix=query_prefix, passage_prefix=passage_prefix)
        served = app(retriever, topk)
        import uvicorn
    except UsageError as error:
        raise click.ClickException(str(error)) from error
    uvicorn.run(served, host=host, port=port, log_level="warning")


if __name__ == "__main__":
    main()

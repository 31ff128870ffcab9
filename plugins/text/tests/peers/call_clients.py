"""Call a server with one stock client of others; print what did not work.

    python call_clients.py CLIENT URL

Run by an interpreter that has this client alone (`make test-text`). The server has the
embedding model `unit`, the reranker `rank` and the classifier `classes`.
"""

import asyncio
import sys

TEXTS = ["the cat sits", "a dog"]


def openai_calls(url):
    from openai import AsyncOpenAI, NotFoundError, OpenAI

    root = f"{url}/openai/v1"
    client = OpenAI(base_url=root, api_key="none")

    async def asynchronous():
        async with AsyncOpenAI(base_url=root, api_key="none") as one:
            return await one.embeddings.create(model="unit", input=TEXTS)

    def refuses():
        try:
            client.embeddings.create(model="missing", input="a")
        except NotFoundError as error:
            return "missing" in str(error) and error.code == "model_not_found"
        return False

    return {
        "base64": lambda: client.embeddings.create(model="unit", input=TEXTS).data,
        "floats": lambda: client.embeddings.create(
            model="unit", input="a", encoding_format="float", dimensions=4
        ).data,
        "async": lambda: asyncio.run(asynchronous()).data,
        "models": lambda: [one.id for one in client.models.list()],
        "error": refuses,
    }  # fmt: skip


def langchain_calls(url):
    from langchain_openai import OpenAIEmbeddings

    given = {"model": "unit", "base_url": f"{url}/openai/v1", "api_key": "none"}
    plain = OpenAIEmbeddings(check_embedding_ctx_length=False, **given)
    return {
        "documents": lambda: plain.embed_documents(TEXTS),
        "query": lambda: plain.embed_query(TEXTS[0]),
        "async": lambda: asyncio.run(plain.aembed_documents(TEXTS)),
    }


def llama_index_calls(url):
    from llama_index.embeddings.openai import OpenAIEmbedding

    root = f"{url}/openai/v1"
    client = OpenAIEmbedding(model_name="unit", api_base=root, api_key="none")
    return {
        "texts": lambda: client.get_text_embedding_batch(TEXTS),
        "query": lambda: client.get_query_embedding(TEXTS[0]),
    }


def cohere_calls(url):
    import cohere

    client = cohere.ClientV2(api_key="none", base_url=url)
    given = {"model": "rank", "query": "a cat", "documents": TEXTS}
    return {"rerank": lambda: client.rerank(**given).results}


def huggingface_calls(url):
    from huggingface_hub import InferenceClient

    embed, similar, predict = (
        InferenceClient(f"{url}/v1/models/{path}")
        for path in ("unit/embed", "unit/similarity", "classes/predict")
    )
    return {
        "embed": lambda: embed.feature_extraction("a cat").size,
        "similarity": lambda: similar.sentence_similarity(
            "a cat", other_sentences=TEXTS
        ),
        "classify": lambda: predict.text_classification("a cat"),
    }


def litellm_calls(url):
    import litellm

    litellm.suppress_debug_info = True
    root = f"{url}/openai/v1"
    given = {"api_key": "none", "input": TEXTS}
    ranked = {"query": "a cat", "documents": TEXTS, "api_key": "none"}
    return {
        "openai": lambda: (
            litellm.embedding(model="openai/unit", api_base=root, **given).data
        ),
        "infinity": lambda: (
            litellm.embedding(
                model="infinity/unit", api_base=f"{url}/infinity", **given
            ).data
        ),
        "triton": lambda: (
            litellm.embedding(
                model="triton/unit", api_base=f"{url}/v1/models/unit/infer", input=TEXTS
            ).data
        ),
        "rerank huggingface": lambda: (
            litellm.rerank(
                model="huggingface/rank", api_base=f"{url}/v1/models/rank", **ranked
            ).results
        ),
        "rerank infinity": lambda: (
            litellm.rerank(
                model="infinity/rank", api_base=f"{url}/infinity", **ranked
            ).results
        ),
        "rerank jina": lambda: (
            litellm.rerank(model="jina_ai/rank", api_base=url, **ranked).results
        ),
    }


CLIENTS = {
    "openai": openai_calls,
    "langchain-openai": langchain_calls,
    "llama-index-embeddings-openai": llama_index_calls,
    "cohere": cohere_calls,
    "huggingface_hub": huggingface_calls,
    "litellm": litellm_calls,
}


def main(client, url):
    failed = 0
    for name, call in CLIENTS[client](url).items():
        try:
            found = call()
        except Exception as error:
            found = f"{type(error).__name__}: {error}"[:300]
        else:
            if found:
                print(f"{client} {name}: ok")
                continue
        failed += 1
        print(f"{client} {name}: FAILED: {found!r}")
    sys.exit(failed)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Call a server with the stock clients of others; print what did not work.

    python call_clients.py URL

Run by an interpreter that has them (`make test-text`). The server has the embedding
model `unit`, the reranker `rank` and the classifier `classes`.
"""

import asyncio
import sys

import cohere
import litellm
from huggingface_hub import InferenceClient
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai import OpenAIEmbedding
from openai import AsyncOpenAI, NotFoundError, OpenAI

TEXTS = ["the cat sits", "a dog"]


async def asynchronous(url):
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        return await client.embeddings.create(model="unit", input=TEXTS)


def openai_refuses(client):
    try:
        client.embeddings.create(model="missing", input="a")
    except NotFoundError as error:
        return "missing" in str(error) and error.code == "model_not_found"
    return False


def calls(url):
    root = f"{url}/openai/v1"
    openai = OpenAI(base_url=root, api_key="none")
    given = {"api_key": "none", "input": TEXTS}
    ranked = {"query": "a cat", "documents": TEXTS, "api_key": "none"}
    chain = OpenAIEmbeddings(
        model="unit", base_url=root, api_key="none", check_embedding_ctx_length=False
    )
    index = OpenAIEmbedding(model_name="unit", api_base=root, api_key="none")
    embed = InferenceClient(f"{url}/v1/models/unit/embed")
    similar = InferenceClient(f"{url}/v1/models/unit/similarity")
    predict = InferenceClient(f"{url}/v1/models/classes/predict")
    return {
        "openai": lambda: openai.embeddings.create(model="unit", input=TEXTS).data,
        "openai floats": lambda: openai.embeddings.create(
            model="unit", input="a", encoding_format="float", dimensions=4
        ).data,
        "openai async": lambda: asyncio.run(asynchronous(root)).data,
        "openai models": lambda: [one.id for one in openai.models.list()],
        "openai error": lambda: openai_refuses(openai),
        "langchain": lambda: chain.embed_documents(TEXTS),
        "llama-index": lambda: index.get_text_embedding_batch(TEXTS),
        "cohere": lambda: cohere.ClientV2(api_key="none", base_url=url).rerank(
            model="rank", query="a cat", documents=TEXTS
        ).results,
        "huggingface embed": lambda: embed.feature_extraction("a cat").size,
        "huggingface similarity": lambda: similar.sentence_similarity(
            "a cat", other_sentences=TEXTS
        ),
        "huggingface classify": lambda: predict.text_classification("a cat"),
        "litellm openai": lambda: litellm.embedding(
            model="openai/unit", api_base=root, **given
        ).data,
        "litellm infinity": lambda: litellm.embedding(
            model="infinity/unit", api_base=f"{url}/infinity", **given
        ).data,
        "litellm triton": lambda: litellm.embedding(
            model="triton/unit", api_base=f"{url}/v1/models/unit/infer", input=TEXTS
        ).data,
        "litellm rerank huggingface": lambda: litellm.rerank(
            model="huggingface/rank", api_base=f"{url}/v1/models/rank", **ranked
        ).results,
        "litellm rerank infinity": lambda: litellm.rerank(
            model="infinity/rank", api_base=f"{url}/infinity", **ranked
        ).results,
        "litellm rerank jina": lambda: litellm.rerank(
            model="jina_ai/rank", api_base=url, **ranked
        ).results,
    }  # fmt: skip


def main(url):
    litellm.suppress_debug_info = True
    failed = 0
    for name, call in calls(url).items():
        try:
            found = call()
        except Exception as error:
            found = f"{type(error).__name__}: {error}"[:300]
        else:
            if found:
                print(f"{name}: ok")
                continue
        failed += 1
        print(f"{name}: FAILED: {found!r}")
    sys.exit(failed)


if __name__ == "__main__":
    main(*sys.argv[1:])

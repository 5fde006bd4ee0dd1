"""Which model the demo's agents use: `offline`, or `PROVIDER:NAME` of Strands' own providers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import strands.models
from strands.models import Model

from ..errors import DurableStrandsError
from .offline import OfflineModel

VARIABLE = "DURABLE_STRANDS_DEMO_MODEL"
"""Environment variable by which the choice reaches the worker process."""

OFFLINE = "offline"


class ModelChoiceError(DurableStrandsError):
    """No model can be made of what was asked for."""


@dataclass(frozen=True)
class Provider:
    """One of Strands' model providers.

    Attributes:
        class_name: Its class in `strands.models`.
        arguments: What its constructor requires besides the model's name.
        has_default: Whether it has a model for those who name none.
    """

    class_name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    has_default: bool = False


PROVIDERS = {
    "bedrock": Provider("BedrockModel", has_default=True),
    "anthropic": Provider("AnthropicModel", {"max_tokens": 2_000}),
    "openai": Provider("OpenAIModel"),
    "ollama": Provider("OllamaModel", {"host": None}),  # None: as $OLLAMA_HOST says.
    "gemini": Provider("GeminiModel"),
    "litellm": Provider("LiteLLMModel"),
    "mistral": Provider("MistralModel"),
}
"""By the name that Strands' extra has too. Keys come from each provider's own environment."""


@cache
def model_for(role: str) -> Model:
    """Return the model of an agent, as the environment chooses it.

    One a role and process: models keep no conversation, and making a client can be slow.

    Raises:
        ModelChoiceError: The choice is wrong; says how.
    """
    choice = os.environ.get(VARIABLE) or OFFLINE
    return OfflineModel.of_role(role) if choice == OFFLINE else provider_model(choice)


def provider_model(choice: str) -> Model:
    """Return the model of Strands' that `PROVIDER:NAME` names.

    Raises:
        ModelChoiceError: There is no such provider, its package is missing, or it refuses.
    """
    key, _, name = choice.partition(":")  # A name may have colons of its own: ollama:qwen3:4b
    provider = PROVIDERS.get(key)
    if provider is None:
        known = ", ".join((OFFLINE, *PROVIDERS))
        hint = f" ({OFFLINE!r} takes no name)" if key == OFFLINE else ""
        raise ModelChoiceError(f"There is no model {choice!r}{hint}. The providers are: {known}.")
    if not name and not provider.has_default:
        raise ModelChoiceError(
            f"{choice!r} doesn't say which model. Write {key}:NAME with a name that {key} knows."
        )
    try:
        model_class = getattr(strands.models, provider.class_name)
    except ImportError as error:
        raise ModelChoiceError(
            f"Models of {key} need a package that isn't installed ({error}): "
            f"pip install 'strands-agents[{key}]'"
        ) from error
    arguments = {**provider.arguments, **({"model_id": name} if name else {})}
    try:
        return cast(Model, model_class(**arguments))
    except Exception as error:  # Each provider has exceptions of its own, for a missing key say.
        raise ModelChoiceError(f"{provider.class_name} can't be made: {error}") from error


def check_choice(choice: str) -> None:
    """Find out here, rather than in the worker, whether a model can be made of a choice.

    Raises:
        ModelChoiceError: As `provider_model`.
    """
    if choice != OFFLINE:
        provider_model(choice)


def describe(choice: str) -> str:
    """Say for the screen what a choice is."""
    if choice == OFFLINE:
        return "offline extractive model, no language model"
    return choice

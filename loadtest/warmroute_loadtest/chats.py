"""A small multi-turn chat workload: a few shared system prompts, several conversations on each."""

from dataclasses import dataclass, field
from typing import TypeAlias

Message: TypeAlias = dict[str, str]

_HOUSES = {
    "a lending library": ("book", "reader", "loan"),
    "a bicycle workshop": ("bicycle", "rider", "repair"),
    "a botanical garden": ("plant", "visitor", "tour"),
    "a bakery": ("loaf", "customer", "order"),
    "a ferry line": ("crossing", "passenger", "booking"),
    "a music school": ("lesson", "student", "course"),
}
_RULES = (
    "Greet every {who} politely and answer in at most two sentences.",
    "A {what} can be reserved for three days; after that it goes back to the others.",
    "When a {who} is late for a {deal}, remind them once and do not charge for the first week.",
    "Never promise a {what} that is not in the list of today.",
    "The opening hours are nine to six on weekdays and ten to four on Saturdays.",
    "Children under twelve need an adult for every {deal}.",
    "A {who} who complains is offered another {what} before anything else.",
    "Prices are given in whole euros, with the discount for a {who} of many years.",
    "Do not give the address or the telephone number of one {who} to another.",
    "If you do not know, say so and name the front desk.",
    "A {deal} can be cancelled without a fee until the evening before.",
    "Every {deal} gets a number of six digits; ask for it before you change anything.",
    "A {what} that comes back damaged is looked at by two people, and the {who} may be present.",
    "Groups of more than eight write to the office two weeks ahead and get an answer within three days.",
    "On holidays only the side door is open, and no {deal} can be paid in cash.",
    "Speak of the {what} by its full name the first time, and by its short name afterwards.",
    "A gift card is valid for two years and can be used for every {what} and every {deal}.",
    "When two {who}s want the same {what}, the one who asked first has it, and the other is called when it is free.",
    "Lost things are kept at the front desk until the end of the month.",
    "Say thank you at the end of every {deal}, and ask whether there is anything else.",
)
_QUESTIONS = (
    "Hello, my family and I would like to arrange a {deal} for next {day}. What do we have to bring, and when?",
    "And if my brother comes along, does he pay the same, or is there a discount for two?",
    "Thank you. One more thing: until when can I cancel the {deal} if it rains on {day}?",
    "Could you also tell me which {what} you would recommend to somebody who has never had one before, and why?",
)
CATALOGUE = 28
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


@dataclass
class Conversation:
    """Its history grows with the model's real answers."""

    house: str
    questions: list[str]
    messages: list[Message] = field(default_factory=list)

    def ask(self) -> list[Message]:
        """The messages of the next request."""
        self.messages.append({"role": "user", "content": self.questions.pop(0)})
        return self.messages

    def answered(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})


def system_prompts(count: int) -> dict[str, str]:
    """`count` system prompts by the house that they are for, at most six, each of some 900 tokens."""
    prompts = {}
    for house, words in list(_HOUSES.items())[:count]:
        what, who, deal = words
        rules = " ".join(rule.format(what=what, who=who, deal=deal) for rule in _RULES)
        stock = " ".join(
            f"The {what} number {number} is free from {_DAYS[number % 6]} on, for {10 + 7 * number % 31} euros."
            for number in range(1, CATALOGUE + 1)
        )
        prompts[house] = (
            f"You are the assistant of {house}. These are the rules. {rules} This is the list of today. {stock}"
        )
    return prompts


def conversations(prompts: dict[str, str], per_prompt: int, turns: int) -> list[Conversation]:
    """`per_prompt` conversations of `turns` turns on each system prompt."""
    chats = []
    for house, prompt in prompts.items():
        what, _, deal = _HOUSES[house]
        for number in range(per_prompt):
            day = _DAYS[number % len(_DAYS)]
            # The first words differ, so that two conversations share the system prompt and no more.
            questions = [question.format(what=what, deal=deal, day=day) for question in _QUESTIONS[:turns]]
            questions[0] = f"This is visitor {number + 1} on {day}. {questions[0]}"
            chats.append(Conversation(house, questions, [{"role": "system", "content": prompt}]))
    return chats

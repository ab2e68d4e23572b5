"""Speech acts: what an agent's message asks, proposes, refuses or closes, judged sentence by sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass


def either(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


QUESTION_WORDS = {
    "email": either(r"\be-?\s?mail", r"\bmail address"),
    "identity": either(r"\bverif", r"\bidenti", r"\bauthenticat", r"\bwho (?:you are|am i|i am)", r"\byour account\b"),
    "name": either(
        r"\b(?:sur)?name\b(?! of (?:the|that|this) (?:item|product|article|thing))(?<!item name)(?<!product name)",
        r"\bpost(?:al)?[ -]?code",
        r"\bzip\b",
    ),
    "order": either(
        r"\border (?:number|id|no\b|reference)(?!\W*\d)",
        r"\b(?:number of (?:the|your|that|this) order|order's number|reference number)",
        r"\b(?:which|what) order",
        r"\border is (?:it|this|that)\b",
        r"\bthe number\b(?!\W*\d)",
        r"\b(?:specify|name) (?:the|your) order\b",
        r"\border\?$",
    ),
    "item": either(
        r"\b(?:which|what)\b(?: \w+){0,3} (?:items?|products?|articles?|things?)\b",
        r"\b(?:which|what) (?:one|part)\b",
        r"\bwhat would you like to (?:return|exchange|send back|swap)",
        r"\b(?:item|product|article) name|\bname of (?:the|that|this) (?:item|product|article|thing)",
        r"\bthe (?:item|product|article) (?:in question|concerned|is\b|it is|you)",
        r"\b(?:specify|name) (?:the|your) (?:item|product|article)",
    ),
    "colour": either(r"\bcolou?r", r"\bshade\b"),
    "address": either(
        r"\b(?:new|which|what|other|another|different|delivery|shipping|correct|right|your|the) address",
        r"\bwhere\b(?!.*\b(?:refund|money)).*\b(?:send|sent|deliver|ship|go)",
        r"\b(?:new|your|which|what) (?:street|house number|destination)",
    ),
    "refund": either(
        r"\b(?:how|where|what way)\b.*\b(?:refund|money|pay|paid|repa|reimburs)",
        r"\b(?:refund|money|paid)\b.*\b(?:how|way|where|method|or)\b",
        r"\bvoucher or\b|\bor\b.*\bvoucher",
        r"\brefund method",
    ),
    "wish": either(
        r"\bhow (?:can|may|could) (?:i|we) (?:help|assist|be of)",
        r"\bwhat can (?:i|we) do",
        r"\bwhat (?:do |would )?you (?:need|want|like)",
        r"\bwhat (?:is it|is this|it is|this is) about",
        r"\bwhat (?:brings you|seems to be|is going on|(?:has )?happened)|\bwhat's (?:going on|wrong|up)\b",
        r"\b(?:the|your) (?:problem|matter|reason|request|issue|concern)\b",
    ),
}
"""Requests of an agent."""

NOT_ADDRESS = r"(?!.{0,50}\b(?:address|destination))"
ACTIONS = {
    "cancel": either(
        r"\b(?:cancel|void|annul|revok|withdraw)",
        r"\bcall\w*\b.{0,40}\boff\b",
        r"\b(?:stop|halt|abort|scrap)\w*\b.{0,15}\b(?:it|order|shipment|delivery|purchase)\b",
    ),
    "return": either(r"\breturn", r"\b(?:send|sent|sending|tak\w+|took|bring\w*|giv\w+|hand\w*)\b.{0,50}\bback\b"),
    "refund": either(
        r"\b(?:refund|reimburs|re-?pa[iy]|credit)", r"\bmoney back\b", r"\bpa(?:y|id|ying)\b.{0,50}\bback\b"
    ),
    "exchange": either(r"\b(?:exchang|swap|replac|substitut|switch|trad(?:e|ing))\w*" + NOT_ADDRESS),
    "address": either(
        r"\b(?:send|sent|ship|deliver|redirect|re-?rout|forward|divert|dispatch|go|goes)\w*\b.{0,60}\bto\b",
        r"\b(?:chang|updat|switch|correct|set|amend|edit|modif|replac)\w*\b.{0,60}\b(?:address|destination)",
    ),
    "hand over": either(
        r"\bhand\w*\b.{0,40}\bover\b", r"\b(?:colleague|specialist|supervisor|someone else)", r"\bescalat"
    ),
}
"""Proposals of an agent, by their synonyms."""

QUESTION_WORD = either(
    r"(?:^|[,:;(]|\b(?:and|or|in|to|please|me|so|know|then|exactly|now|also|ask|again|wonder|with)) *"
    r"(?:which|what|where|when|why|who|whose|how)(?:'s)?\b"
    r"(?! (?:do you (?:say|think)|about|does (?:that|this|it) sound))"
)
GET = (
    r"\b(?:may|can|could|might) (?:i|we) (?:\w+ )?(?:have|get|know|ask|see)\b"
    r"(?! your (?:confirmation|approval|consent|permission|ok))"
)
REQUEST = either(
    r"(?:^|\b(?:please|kindly|you|to|just|and|first|then|me|mind)) *(?:\w+ly |first |just |then |please )*"
    r"(?:tell|giv(?:e|ing)|provid(?:e|ing)|shar(?:e|ing)|send (?:me|us)|state|enter|type|write|repeat|spell|specify"
    r"|let me (?:know|have)|supply|remind|identify|verify|confirm|name|describe)\b",
    r"\b(?:i|we)(?:'ll|'d| will| would| do| just| first| also| still)* (?:need|require|like to (?:know|have))\b",
    r"\bask(?:ing)? (?:you )?for\b",
    GET,
)
WAIT = either(
    r"\bplease\b.*\b(?:check|see|wait|hold|bear|note|allow|watch|look|expect|keep|be)\b", r"\b(?:wait|hold on|moment)\b"
)
TELL = either(
    r"\byou (?:\w+ )?(?:tell|give|provide|share|explain|send|repeat|describe|spell|say|specify|remember|know|have)\b"
    r"(?! (?:me )?(?:if|whether))",
    GET,
)
FINE = r"(?:ok|okay|fine|all ?right|alright|acceptable|correct|right|good|happy)"
OFFER = either(
    r"\b(?:shall|should|may|can|could|might) (?:i|we)\b(?! (?:\w+ )?(?:have|get|know|ask|see)\b)",
    r"\b(?:i|we) (?:should|shall|may)\b",
    r"\b(?:like|want|wish|need|for) (?:me|us) to\b",
    rf"\b{FINE}\b(?: with you)? ?(?:if|for|to|with|that|\?)",
    rf"\bis (?:that|this|it) {FINE}\b",
    r"\b(?:go ahead|proceed|do you agree)\b",
)
CONSENT = either(
    r"\b(?:please|kindly|you|to|just) (?:\w+ )?(?:confirm|agree|approve|say yes|reply yes)\b",
    r"^(?:confirm|say yes|reply yes)\b",
    rf"\b(?:if|whether|that) you(?:'re| are)? (?:agree|confirm|approve|{FINE}|content)\b",
    r"\blet me know (?:if|whether)",
    r"\b(?:with|for|need|await\w*|have) your (?:confirmation|approval|consent|go-ahead|permission|okay|ok|agreement)\b",
    r"^(?:shall|should|may) (?:i|we)\b",
    r"\byes or no\b",
)
"""Phrases that ask for a yes without a question mark."""

LOOKUP = (
    r"(?:find|found|locat\w*|see|seem|open|access|look|retriev\w*|identif\w*|verif\w*|read|hear|understand|tell"
    r"|guarantee|promise|undo|undone|revers\w*|remember|reach|wait|thank|believe|imagine|stress)"
)
NOT = (
    r"(?:can ?not|can'?t|could ?n'?t|could not|unable|not (?:\w+ )?able|won'?t|will not|wouldn'?t|would not|no longer"
    r"|may not|must not|mustn'?t|not going|don'?t|do not|does not|doesn'?t|am not|'m not|never|no way|nothing i can)"
)
VERB = (
    r"(?:cancel\w*|call\w*|void\w*|stop\w*|refund\w*|return\w*|reimburs\w*|exchang\w*|swap\w*|replac\w*|chang\w*"
    r"|redirect\w*|rerout\w*|send\w*|sent|ship\w*|deliver\w*|updat\w*|tak\w+|accept\w*|process\w*|do|done|help|assist"
    r"|fulfil\w*|grant\w*|comply|approv\w*|honou?r\w*|allow\w*|permit\w*|offer\w*|giv\w+|issue\w*|pay|paid|go ahead"
    r"|proceed|qualif\w*|make (?:an|any|that|this|the|such) (?:exception|change)\w*)"
)
REFUSAL = either(
    rf"\b{NOT}\b,?(?: (?!{LOOKUP}\b)[\w']+){{0,5}}? {VERB}\b",
    r"\b(?:not|isn'?t|aren'?t|wasn'?t) (?:\w+ )?(?:possible|allowed|permitted|eligible|entitled|authori[sz]ed"
    r"|available)"
    rf"\b(?! to {LOOKUP})",
    rf"\b(?:impossible|unavailable)\b(?! to {LOOKUP})",
    r"\bno (?:cancell?ations?|refunds?|returns?|exchanges?|exceptions?)\b",
    r"\btoo late\b",
    r"\bagainst (?:the|our|my|company) (?:\w+ )?(?:policy|rules?)",
    r"\b(?:out of stock|sold out|not in stock)\b",
    r"\b(?:policy|rules?|terms)\b.{0,30}\b(?:forbids?|prohibits?|prevents?|excludes?)\b",
    r"\b(?:i|we|to|must)(?:'ll| will)? (?:\w+ )?(?:decline|refuse|reject|deny|turn (?:it|this|that|you) down)\b",
    r"\b(?:can'?t|can ?not|won'?t|unable)(?: to)?,? *(?:sorry)?[.!]*$",
    r"\b(?:afraid not|no can do)\b",
)
"""Phrases that deny the customer's request. Regret alone denies nothing, nor does what cannot be found."""
PENDING = either(r"\b(?:without|until|till|yet)\b", r"\b(?:unless|before|once) (?:you|i|we)\b")
"""Phrases that put off, and refuse nothing."""

SO_FAR = r"(?: now| just| already| successfully)*"
DONE = either(
    rf"\b(?:i|we)(?:'ve| have){SO_FAR} (?!located|found|checked|looked|seen|noted|received)\w+(?:ed|t)\b",
    r"\b(?:i|we)(?: just| now| already| went ahead and)+ (?!looked|checked|located|need)\w+ed\b",
    rf"\b(?:has|have|was|were){SO_FAR}(?: been)?{SO_FAR} (?!located|found|delivered|shipped|ordered|paid)\w+ed\b",
    r"\b(?:is|are) (?:now|already) \w+ed\b",
    r"^done\b|\b(?:all|is|it's|that's) done\b",
)

MORE = either(
    r"\b(?:anything|something|nothing|what|how|who) (?:else|more|further)\b",
    r"\b(?:any|other|further|additional|more)(?: other| further| more)? (?:questions?|requests?|concerns?|matters?"
    r"|issues?|help|assistance|things?|wish(?:es)?)\b",
    r"\b(?:(?:is|was) (?:that|this|it)|(?:will|would) (?:that|this|it) be) (?:all|everything)(?: (?!right)\w+)?\?$",
    r"\banother (?:thing|matter|question|request)\b",
    r"\ball (?:done|set)\b",
)
NOT_MORE = either(
    r"\bbefore (?:i|we) \w+ (?:anything|something)",
    r"\binstead\b",
    r"\b(?:should|must|need to|ought to|have to) know\b",
    r"\b(?:about|besides|other than) (?:the|this|that|your) ",
)
INVITES = either(r"\?$", r"\blet me know\b", r"\bif (?:there|you)\b", r"\bjust (?:say|ask|tell)\b")
FAREWELL = either(r"\b(?:good)?bye\b", r"\bhave an? \w+", r"\b(?:take care|see you|farewell|all the best)\b")
COURTESY = either(
    r"^(?:ok|okay|great|perfect|well|all right|alright|thank|thanks|you'?re welcome|my pleasure|cheers|enjoy|best)\b",
    r"\bpleasure\b",
)


BREAK = either(
    r"(?<=[.!?])\s+",
    r"[;\n]+|\s+[-–—]+\s+|—",
    r",?\s+(?:but|however)\b,?",
    r",\s+(?=(?:so )?(?:is|are|would|do|shall|should|will) )",
)
"""End of a sentence, or of a clause with a verb of its own."""


@dataclass(frozen=True)
class Acts:
    """Acts of one message."""

    asks: frozenset[str] = frozenset()
    """Topics of ASKED."""
    consent: bool = False
    """It asks for a yes."""
    actions: frozenset[str] = frozenset()
    """Keys of ACTIONS that it proposes, in the question or before it."""
    offered: frozenset[str] = frozenset()
    """Those in the question itself."""
    refuses: bool = False
    done: bool = False
    """It reports that something was done."""
    more: bool = False
    """It asks for another wish."""
    farewell: bool = False
    """It says goodbye and nothing else."""
    text: str = ""
    """Its sentences that refuse nothing, in small letters."""


def acts(utterance: str) -> Acts:
    """Classify a message."""
    parts = sentences(utterance)
    granted = [one for one in parts if not refuses(one)]
    asks, offered, actions = set[str](), set[str](), set[str]()
    consent = more = False
    for one in granted:
        if asks_more(one):
            more = True
            continue
        topics, named = topics_of(one), keys(ACTIONS, one)
        asks |= topics
        if not topics and asks_consent(one):
            consent = True
            offered |= named
        if not DONE.search(one):
            actions |= named
    polite = [bool(FAREWELL.search(one) or COURTESY.search(one)) for one in parts]
    return Acts(
        frozenset(asks),
        consent,
        frozenset(actions),
        frozenset(offered),
        len(granted) < len(parts),
        any(DONE.search(one) for one in granted),
        more,
        bool(parts) and all(polite) and any(FAREWELL.search(one) for one in parts),
        " ".join(granted),
    )


def sentences(utterance: str) -> list[str]:
    """Return the sentences of a message in small letters, parted at dashes, "but", and before a question's verb."""
    plain = re.sub(r"[*_`\"“”]", "", utterance.replace("’", "'")).casefold()
    return [one.strip() for one in BREAK.split(plain) if re.search(r"\w", one)]


def refuses(sentence: str) -> bool:
    return not (sentence.endswith("?") or PENDING.search(sentence)) and bool(REFUSAL.search(sentence))


def asks_more(sentence: str) -> bool:
    return bool(INVITES.search(sentence) and MORE.search(sentence)) and not NOT_MORE.search(sentence)


def topics_of(sentence: str) -> set[str]:
    """Topics that a sentence asks for; none where it proposes to do something."""
    question = QUESTION_WORD.search(sentence)
    please = re.search(r"\bplease\b", sentence) and not WAIT.search(sentence)
    if not (sentence.endswith("?") or question or please or REQUEST.search(sentence)):
        return set()
    if not question and OFFER.search(sentence) and keys(ACTIONS, sentence):
        return set()
    found = keys(QUESTION_WORDS, sentence)
    if found & {"email", "name"}:
        found -= {"identity"}
    return found - {"wish"} if len(found) > 1 else found


def asks_consent(sentence: str) -> bool:
    """Return whether a yes or a no would answer it."""
    if QUESTION_WORD.search(sentence) or TELL.search(sentence) or re.search(r"\bthank", sentence):
        return False
    return sentence.endswith("?") or bool(CONSENT.search(sentence))


def keys(patterns: dict[str, re.Pattern[str]], text: str) -> set[str]:
    return {key for key, pattern in patterns.items() if pattern.search(text)}

"""The wordings of questions: those trained on, and those kept for measuring."""

# {name} is what is asked about, {code} a function's text, {word} a module's topic.
SEEN: dict[str, list[str]] = {
    "summary": [
        "What's {name}?",
        "What does {name} do, in short?",
        "What's the use of {name}?",
        "What purpose does {name} have?",
        "What is the point of {name}?",
        "Sum {name} up in a sentence.",
        "One sentence about {name}, please.",
        "Give me a short description of {name}.",
        "Give me a brief summary of {name}.",
        "Briefly, what is {name} good for?",
        "When do I need {name}?",
        "Short answer: what does {name} do?",
        "I don't know {name}. What is it?",
        "What can I do with {name}?",
        "What does {name} do?",
        "What is {name}?",
        "What is {name} for?",
        "What is {name} used for?",
        "Describe {name} in one sentence.",
        "Summarise {name}.",
        "In short, what does {name} do?",
        "Give me a one-line summary of {name}.",
        "Can you tell me what {name} does?",
        "Why would I use {name}?",
        "Tell me briefly what {name} is.",
        "I came across {name}. What does it do?",
    ],
    "explain": [
        "Explain {name} in depth.",
        "Explain {name} fully, please.",
        "I want a detailed description of {name}.",
        "Give me an explanation of {name}.",
        "Give me a long explanation of {name}, with the details.",
        "Can you describe {name} in depth?",
        "I don't understand {name}. Explain it.",
        "Help me understand {name} in detail.",
        "Walk through {name} with me.",
        "What are the details of {name}?",
        "I need all the details about {name}.",
        "Describe fully how {name} works.",
        "Please tell me all about {name}.",
        "What should I know about {name}?",
        "Explain {name}.",
        "Explain {name} in detail.",
        "How does {name} work?",
        "Tell me about {name}.",
        "Tell me everything about {name}.",
        "Show me the documentation of {name}.",
        "What does the documentation say about {name}?",
        "Give me the docstring of {name}.",
        "I need the full description of {name}.",
        "Describe {name} in detail.",
        "Can you explain {name} to me?",
        "How do I use {name}? Explain it in full.",
    ],
    "signature": [
        "What's the signature of {name}?",
        "Remind me of the parameters of {name}.",
        "Which arguments does {name} accept?",
        "What arguments can I give to {name}?",
        "I forgot the signature of {name}.",
        "I need the signature of {name}.",
        "What are the arguments of {name}?",
        "Which parameters can be passed to {name}?",
        "Tell me the parameters of {name}.",
        "Print the signature of {name}.",
        "What is the signature of {name}?",
        "Show me the signature of {name}.",
        "Signature of {name}?",
        "What arguments does {name} take?",
        "Which parameters does {name} have?",
        "What are the parameters of {name}?",
        "What do I pass to {name}?",
        "How is {name} called?",
        "List the arguments of {name}.",
        "Give me the call signature of {name}.",
    ],
    "source": [
        "Display the source of {name}.",
        "I want to see the source code of {name}.",
        "Let me read the code of {name}.",
        "What is the implementation of {name}?",
        "Show me the implementation of {name}.",
        "Could you show me the code of {name}?",
        "Print the source of {name}.",
        "I need the source code of {name}.",
        "Let me see how {name} is written.",
        "Give me the source code of {name}.",
        "Show me the source of {name}.",
        "Show the source code of {name}.",
        "What is the source of {name}?",
        "How is {name} implemented?",
        "Give me the code of {name}.",
        "Print the implementation of {name}.",
        "Write out the code of {name}.",
        "Can I see the code behind {name}?",
        "Source code for {name}, please.",
        "What does the code of {name} look like?",
    ],
    "example": [
        "I need an example of {name}.",
        "Write an example of {name}.",
        "Could you give me an example that uses {name}?",
        "Please show an example with {name}.",
        "A small example of {name}, please.",
        "Demonstrate {name}.",
        "How would I use {name} in code?",
        "What does a call of {name} look like?",
        "Give me an example of {name}.",
        "Show me an example of {name}.",
        "Show me how to use {name}.",
        "How do I call {name}? Give an example.",
        "Can you show {name} in use?",
        "Example of {name}?",
        "Write a short example with {name}.",
        "I would like to see an example that uses {name}.",
    ],
    "contents": [
        "Name what is in {name}.",
        "Show me what {name} contains.",
        "Give me a list of the functions in {name}.",
        "Show me the list of names in {name}.",
        "Which names does {name} have?",
        "What functions are there in {name}?",
        "Tell me the classes and functions of {name}.",
        "What is in {name}?",
        "What does {name} contain?",
        "List the names in {name}.",
        "Which functions and classes does {name} have?",
        "What can I import from {name}?",
        "What does {name} offer?",
    ],
    "read": [
        "What is the signature of this function?\n\n{code}",
        "Here is a function. Give me its signature.\n\n{code}",
        "{code}\n\nWhich arguments does it take?",
        "{code}\n\nWhat is the signature of this code?",
        "Read this code and tell me its signature:\n\n{code}",
    ],
}

UNSEEN: dict[str, list[str]] = {
    "summary": [
        "Please sum up {name} for me.",
        "What is the purpose of {name}?",
        "In a nutshell, {name} does what?",
        "Quick question: what's {name} good for?",
    ],
    "explain": [
        "Walk me through {name}.",
        "I don't understand {name}, can you explain it in depth?",
        "Please describe {name} with all the details.",
        "Give a detailed explanation of {name}.",
    ],
    "signature": [
        "Tell me the signature of {name}.",
        "Which arguments can be given to {name}?",
        "I forgot the parameters of {name}, what are they?",
        "What does the signature of {name} look like?",
    ],
    "source": [
        "Let me see the source code of {name}.",
        "I want to read the implementation of {name}.",
        "Could you print the source code of {name}?",
        "Display the code of {name}.",
    ],
    "example": [
        "Please give an example which uses {name}.",
        "Could you write an example of {name} for me?",
        "I need a small example of {name}.",
        "Demonstrate {name} with an example.",
    ],
    "contents": [
        "What will I find in {name}?",
        "Name the functions and classes in {name}.",
        "Show me a list of what {name} contains.",
    ],
    "read": [
        "Tell me the signature of the function below.\n\n{code}",
        "{code}\n\nWhat arguments does this function take?",
    ],
}

FOLLOW_UPS: dict[str, list[str]] = {
    "summary": [
        "What does it do?",
        "And what is it for?",
        "In short?",
        "Sum it up.",
        "What is it?",
        "And in one sentence?",
    ],
    "explain": [
        "Explain it in detail.",
        "Tell me more.",
        "And the full documentation?",
        "More details, please.",
        "How does it work?",
    ],
    "signature": [
        "And its signature?",
        "What is its signature?",
        "What arguments does it take?",
        "Which parameters does it have?",
        "How is it called?",
    ],
    "source": [
        "Show me its source.",
        "And its source code?",
        "How is it implemented?",
        "Can I see the code?",
        "Give me its code.",
    ],
    "example": [
        "Give me an example.",
        "And an example?",
        "Show me how to use it.",
        "Can you show it in use?",
    ],
}

UNSEEN_FOLLOW_UPS: dict[str, list[str]] = {
    "summary": ["And in one sentence, what does it do?", "So what is it used for?"],
    "explain": ["Please explain it in more detail.", "Tell me more about it."],
    "signature": ["Now show me its signature.", "And what arguments can I pass to it?"],
    "source": ["Now show me the source code.", "Let me see its code."],
    "example": ["Please show an example.", "Could you give an example of it?"],
}

# Put around questions, so that the model learns to find the question in a longer message.
BEFORE = (
    "Please: |Hi! |Hello, |Hey, |Quick question: |A question: |For my project: |"
    "I am new to Python. |I am writing a script. |I have a question. |Just curious: |"
    "Excuse me, |Thanks! |Okay, |So, |"
    "Now tell me: |One more thing. |I wonder: |Could you help me? |By the way, |Listen: |Well, |"
    "In a hurry: |First question. |Question about Python: |I am reading some code. |Good morning! "
).split("|")
AFTER = (
    " Thanks!| Thank you.| Please.| I need it for my project.| I am learning Python.|"
    " It is urgent.| That would help me.| I keep forgetting.| I could not find it.| Be precise.|"
    " :)|?| I am curious."
).split("|")

SWITCHES = ["And {name}?", "What about {name}?", "Now the same for {name}.", "And for {name}?"]

SYSTEM = [
    "You are a helpful assistant.",
    "You are a helpful assistant that knows the Python standard library.",
    "You know the Python standard library. Answer from its documentation.",
    "Answer the user's question.",
    "You are a Python expert.",
    "You help programmers. Be precise.",
    "Be brief.",
    "You are an assistant for Python developers. Use Markdown.",
]

LOOK_UPS = [
    "Look up {}.",
    "Look {} up.",
    "Search the docs for {}.",
    "Use the tool to find {}.",
    "Check the docs of {}.",
    "Find {} in the documentation.",
    "Query the documentation for {}.",
]

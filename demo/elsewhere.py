"""What users say that is not about the library: greetings, other subjects, tools of their own."""

GREETINGS = (
    "Hello|Hi|Hi there|Hello!|Hey|Good morning|Good evening|Good day|Thanks|Thank you|Thank you!|"
    "Thanks a lot|Who are you?|What are you?|What is your name?|What can you do?|Help|Help me|"
    "How can you help me?|What do you know?|How are you?|How are you today?|Bye|Goodbye|test|"
    "Are you there?|Can you help me?|What can I ask you?|ping|Introduce yourself|Say hello"
).split("|")

# Each topic below is asked about in each of these ways.
OFF_TOPIC = (
    "What is {}?|Tell me about {}.|Explain {}.|Write a poem about {}.|What do you think of {}?|"
    "Can you tell me a story about {}?|Write an essay about {}.|Give me a summary of {}.|"
    "How does {} work?|Who invented {}?|Give me five facts about {}.|Do you like {}?|"
    "Where can I buy {}?|What is the best {}?|Translate {} into French.|Tell me a joke about {}.|"
    "I want to learn about {}.|Why is {} important?|What is the history of {}?|How big is {}?|"
    "When was {} first seen?|Who knows most about {}?|Compare {} with something else."
).split("|")
TOPICS = (
    "the weather|the weather in London|football|the moon|cats|dogs|the sea|love|a dragon|chocolate|"
    "the French Revolution|the Roman Empire|Napoleon|photosynthesis|gravity|black holes|the sun|"
    "quantum mechanics|cooking pasta|pizza|coffee|tea|a good book|Shakespeare|Mozart|jazz|music|"
    "the capital of Spain|Germany|Japan|New York|the stock market|inflation|bicycles|cars|trains|"
    "aeroplanes|the human heart|sleep|dreams|headaches|vitamins|a recipe for soup|bread|cheese|"
    "gardening|roses|trees|elephants|birds|whales|dinosaurs|volcanoes|earthquakes|rivers|mountains|"
    "the Olympic games|tennis|chess|poker|movies|television|photography|painting|Van Gogh|poetry|"
    "JavaScript|Rust|C++|Java|Linux|Windows|databases|React|Kubernetes|"
    "machine learning|the internet|"
    "my homework|my holiday|a birthday present|wedding speeches|tax returns|politics|elections|"
    "climate change|solar power|nuclear energy|economics|philosophy|Plato|happiness|time travel|"
    "aliens|robots|the future|winter|summer|snow|rain|wine|beer|fashion|shoes|furniture|houses|"
    "the president|the queen|school|mathematics homework|history class|biology|chemistry|medicine"
).split("|")

ABOUT_PLACES = (
    "What is the capital of {}?|Where is {}?|How many people live in {}?|Should I travel to {}?|"
    "What is the population of {}?|What language is spoken in {}?|Is {} far away?|"
    "What is the weather in {}?|What do people eat in {}?|When is the best time to visit {}?|"
    "Plan a trip to {} for me.|How do I get to {}?|Who is the president of {}?|Who won in {}?"
).split("|")
PLACES = (
    "France|Italy|Portugal|Norway|Sweden|Finland|Poland|Greece|Turkey|Egypt|Kenya|Nigeria|Ghana|"
    "Brazil|Chile|Peru|Mexico|Canada|China|India|Vietnam|Thailand|Indonesia|New Zealand|Iceland|"
    "Ireland|Scotland|Wales|Paris|Berlin|Rome|Madrid|Tokyo|Beijing|Moscow|Chicago|Boston|Texas|"
    "California|Florida|Africa|Europe|Asia|the Alps|the Sahara|Antarctica|Venus|Jupiter|Saturn"
).split("|")
ABOUT_PLANS = (
    "How do I {}?|Can you {}?|Should I {}?|I want to {}.|Is it safe to {}?|Help me {}.|"
    "Where can I {}?|When should I {}?|Is it dangerous to {}?|Why do people {}?|Please {}.|"
    "What do I need to {}?|How long does it take to {}?|Is it a good idea to {}?|"
    "What should I know before I {}?"
).split("|")
PLANS = (
    "bake bread|cook rice|fry an egg|eat lunch|drink water|eat dinner|run a marathon|lose weight|"
    "learn French|learn to swim|play the piano|play football|paint a wall|repair a bicycle|"
    "buy a car|rent a flat|find a job|write a letter|write a song|write a novel|sing a song|"
    "tell a story|recommend a book|recommend a restaurant|book a flight|book a hotel|plant a tree|"
    "water the plants|feed the cat|walk the dog|climb a mountain|swim in the sea|sail a boat|"
    "fly a kite|clean the kitchen|wash my clothes|cut my hair|brush my teeth|sleep better|"
    "wake up early|make coffee|make tea|make friends|invest money|save money|pay my taxes|vote|"
    "get married|raise a child|grow tomatoes|catch a fish|ride a horse|drive a truck|stay awake"
).split("|")
# What lies outside the library: forms of questions, and what they ask about.
ELSEWHERE = [(OFF_TOPIC, TOPICS), (ABOUT_PLACES, PLACES), (ABOUT_PLANS, PLANS)]

# Names that a parameter may have instead, so that the model must read them off the schema.
PARAMETERS = (
    "value|input|text|name|query|location|place|city|town|region|target|key|q|arg|subject|symbol|"
    "ticker|id|item|term|topic|keyword|person|address|file|filename|url|content|phrase|formula"
).split("|")

# (tool, its description, its parameter, the parameter's description, questions, values)
TOOLS: list[tuple[str, str, str, str, list[str], str]] = [
    (
        "get_weather",
        "Get the current weather of a city.",
        "city",
        "Name of the city",
        [
            "What is the weather in {}?",
            "How is the weather in {} today?",
            "Is it raining in {}?",
            "Weather in {}, please.",
        ],
        "Paris|London|Berlin|Madrid|Rome|Oslo|Tokyo|Boston|Chicago|Lima|Cairo|Vienna|Prague|Dublin|"
        "Athens|Seoul|Delhi|Sydney|Toronto|Zurich|Helsinki|Warsaw|Lisbon|Geneva|Munich",
    ),
    (
        "get_time",
        "Get the current time in a place.",
        "location",
        "A city or a country",
        ["What time is it in {}?", "Tell me the time in {}.", "Current time in {}?"],
        "Paris|London|Berlin|Madrid|Rome|Oslo|Tokyo|Boston|Chicago|India|Japan|Brazil|Norway|Kenya",
    ),
    (
        "get_stock_price",
        "Look up the price of a share.",
        "symbol",
        "Ticker symbol",
        ["What is the share price of {}?", "How much is {} stock?", "Price of {}?"],
        "AAPL|MSFT|GOOG|AMZN|TSLA|IBM|ORCL|INTC|AMD|NVDA|SAP|BMW",
    ),
    (
        "web_search",
        "Search the web.",
        "query",
        "What to search for",
        ["Search the web for {}.", "Look up {} on the web.", "Find {} online."],
        "python tutorials|cheap flights|the news|a good pizza recipe|open source licences|"
        "red shoes|chess openings|garden tools|jazz records|the next solar eclipse",
    ),
    (
        "calculate",
        "Evaluate an arithmetic expression.",
        "expression",
        "The expression",
        ["What is {}?", "Calculate {}.", "Compute {} for me."],
        "2 + 2|3 * 7|10 / 4|12 - 5|6 * 6|100 + 1|9 * 9|81 / 9|15 + 27|2 ** 8|7 - 3|40 + 2",
    ),
    (
        "read_file",
        "Read a file from the disk.",
        "path",
        "Path of the file",
        ["Read the file {}.", "Show me the file {}.", "What is in the file {}?"],
        "notes.txt|README.md|config.toml|data.csv|main.py|todo.txt|setup.cfg|report.json|log.txt",
    ),
    (
        "send_message",
        "Send a message to a person.",
        "recipient",
        "Who gets the message",
        ["Send a message to {}.", "Write to {}.", "Message {} for me."],
        "Anna|Bob|Carol|David|Emma|Frank|Grace|Henry|Irene|Jack|Kate|Leo|Mary|Nick|Olga|Paul",
    ),
    (
        "translate",
        "Translate a text into English.",
        "text",
        "The text",
        ["Translate {} into English.", "What does {} mean in English?", "Translate: {}"],
        "bonjour|guten Morgen|buenos dias|merci beaucoup|auf Wiedersehen|ciao|gracias|danke|hola",
    ),
]

"""Which standard-library modules are learnt, which are only met, and which are held out."""

# The modules people ask about: learnt by heart. Both models are measured on these as "trained".
CORE = """
array argparse asyncio base64 bisect builtins calendar collections collections.abc
concurrent.futures configparser contextlib copy csv dataclasses datetime decimal difflib
enum fnmatch fractions functools getpass glob gzip hashlib heapq hmac html http inspect io
itertools json logging math operator os os.path pathlib pickle platform pprint queue random
re secrets shlex shutil socket statistics string struct subprocess sys tempfile textwrap
threading time timeit traceback types typing urllib.parse urllib.request uuid warnings
weakref zipfile zlib
""".split()

# Never seen in training, by either model or by the tokenizer.
HELD_OUT = """
bdb cmd code codeop colorsys ensurepip filecmp fileinput graphlib imaplib linecache mailbox
modulefinder netrc nntplib plistlib poplib pyclbr quopri rlcompleter sched selectors smtplib
stringprep symtable tabnanny telnetlib wave wsgiref.util xdrlib zipapp zoneinfo
""".split()

# Met a few times, too rarely to be learnt by heart: they teach both models what an answer about
# an unfamiliar name looks like.
WIDER = """
abc aifc ast asyncore bz2 cProfile cgi chunk cgitb codecs compileall concurrent.futures.thread
contextvars copyreg crypt ctypes.util curses.ascii dbm dis distutils.util doctest
email.header email.message email.policy email.utils email.mime.text email.parser encodings
ftplib gc genericpath getopt gettext html.entities html.parser http.client http.cookiejar
http.cookies http.server imghdr imp importlib importlib.abc importlib.machinery
importlib.metadata importlib.resources importlib.util ipaddress json.decoder json.encoder
keyword lib2to3.pytree locale logging.config logging.handlers lzma mailcap marshal mimetypes
mmap multiprocessing multiprocessing.connection multiprocessing.managers
multiprocessing.pool multiprocessing.shared_memory ntpath numbers opcode optparse pdb
pickletools pipes pkgutil posixpath profile pstats pty py_compile pydoc reprlib resource
runpy select shelve signal site smtpd sndhdr socketserver sqlite3 sre_parse ssl stat sunau
sysconfig tarfile termios token tokenize trace tracemalloc tty unicodedata unittest
unittest.case unittest.mock unittest.loader urllib.error urllib.robotparser uu webbrowser
wsgiref.handlers wsgiref.headers wsgiref.simple_server xml.dom.minidom xml.etree.ElementTree
xml.sax.saxutils xmlrpc.client xmlrpc.server zipimport
""".split()

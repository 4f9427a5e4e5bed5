"""`lagrax explore`: a page on this machine, and for it alone, on which sliders move an equation."""

import contextlib
import html as markup
import re
import secrets
import socket
import tempfile
import threading
import urllib.parse
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dash
from dash import ALL, Dash, Input, Output, Patch, State, ctx, dcc, html
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from ..plotting import COLOURS
from .explore_sliders import ExploreError, Place, Slider, Subject, place, subjects
from .explore_view import STATE_COLOURS, compile_for, diagram, marker, view

HOST = "127.0.0.1"

# A request has some ten numbers in it.
_LARGEST_REQUEST = 64 * 1024

_WAITING = (
    "The equation is being compiled, which takes some seconds the first time. After that, each "
    "move of a slider is shown at once."
)


# --- the page -------------------------------------------------------------------------------------


class _Page(Dash):
    def interpolate_index(self, *parts: Any, **named: Any) -> str:
        # Dash tells the browser where to ask for newer versions. Without its developers' tools the
        # browser does not, but then it need not know where either.
        named["config"] = re.sub(r'https?:[^"]*', "", named["config"])
        return super().interpolate_index(*parts, **named).replace("<html>", '<html lang="en">')


def make_app(token: str) -> Dash:
    """The page below /TOKEN/, where all that it asks for is, too."""
    app = _Page(
        __name__,
        url_base_pathname=f"/{token}/",
        title="lagrax explore",
        update_title="",
        assets_folder=str(Path(__file__).with_name("explore_assets")),
        serve_locally=True,
        compress=False,
        enable_mcp=False,
        add_log_handler=False,
        suppress_callback_exceptions=True,  # the sliders come later
        meta_tags=[{"name": "referrer", "content": "no-referrer"}],
    )
    app.layout = _layout()
    _add_callbacks(app)
    app.server.config["MAX_CONTENT_LENGTH"] = _LARGEST_REQUEST
    _answer_errors(app.server)
    return app


def _layout() -> html.Div:
    first = next(iter(subjects()))
    options = [{"label": s.title, "value": s.name} for s in subjects().values()]
    controls = [
        html.H2("Equation", id="system-label"),
        dcc.Dropdown(options, first, id="system", clearable=False, searchable=False),
        html.P(id="equation", className="equation"),
        html.Div(id="sliders"),
        html.Div(
            [html.P("Diagram over"), dcc.RadioItems([], id="axis", inline=True)], className="choice"
        ),
        html.Div(
            [
                html.Button("Reset", id="reset", className="reset"),
                html.A("Link to this state", id="link", href="?"),
            ],
            className="buttons",
        ),
    ]
    plots = [
        html.P(_WAITING, id="sentence", className="sentence", **_aria(live="polite")),
        _plot("trajectory", html.H2("Trajectory", id="trajectory-title"), "wide"),
        _plot("plane", html.H2("Cobweb of the knot map", id="plane-title")),
        _plot("diagram", html.H2("Bifurcation diagram", id="diagram-title")),
    ]
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="asked"),
            dcc.Store(id="busy", data=False),
            dcc.Store(id="shown"),
            html.Div(id="computing", className="computing", role="status"),
            html.Header(
                [
                    html.H1("lagrax explore"),
                    html.P(
                        "Move a slider, by hand or with the arrow keys. Nothing leaves "
                        "this machine."
                    ),
                ]
            ),
            html.Main(
                [
                    html.Section(controls, className="controls", **_aria(label="Controls")),
                    html.Section(plots, className="plots", **_aria(label="Plots")),
                ],
                className="board",
            ),
        ],
        className="page",
    )


def _aria(**attributes: str) -> dict[str, Any]:
    return {f"aria-{key}": value for key, value in attributes.items()}


def _plot(name: str, heading: html.H2, kind: str = "") -> html.Div:
    config: Any = {"displayModeBar": False, "plotlyServerURL": ""}
    empty = {"data": [], "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}}}
    height = {"height": "var(--plot-height)"}
    graph = dcc.Graph(
        name, figure=empty, className="plot", config=config, responsive=True, style=height
    )
    return html.Div([heading, graph], className=kind)


def _slider(subject: Subject, slider: Slider, value: float) -> html.Div:
    ends = {slider.low: f"{slider.low:g}", slider.high: f"{slider.high:g}"}
    label = [f"{slider.name} ", html.Span(slider.about, className="about")]
    moved = dcc.Slider(
        slider.low,
        slider.high,
        slider.step,
        value=value,
        marks=ends,
        id={"of": subject.name, "slider": slider.name},
        updatemode="drag",
    )
    return html.Div(
        [html.Label(label), moved],
        className="slider",
        role="group",
        **_aria(label=f"{slider.name}, {slider.about}"),
    )


# --- what a move does -----------------------------------------------------------------------------


def _add_callbacks(app: Dash) -> None:
    app.callback(
        Output("system", "value"),
        Output("equation", "children"),
        Output("sliders", "children"),
        Output("trajectory-title", "children"),
        Output("diagram-title", "children"),
        Output("axis", "options"),
        Output("axis", "value"),
        Input("system", "value"),
        Input("reset", "n_clicks"),
        Input("url", "search"),
    )(_chosen)
    # While one request is on its way, moves wait for its answer: Dash would drop that answer for
    # the sake of the next, and a slider that is dragged would show nothing until it stops.
    app.clientside_callback(
        """(values, axis, busy, asked) => {
            const sliders = dash_clientside.callback_context.inputs_list[0];
            const now = {sliders: sliders.map(s => [s.id.of, s.id.slider, s.value]), axis};
            const same = JSON.stringify(now) === JSON.stringify(asked);
            return busy || same ? dash_clientside.no_update : now;
        }""",
        Output("asked", "data"),
        Input({"of": ALL, "slider": ALL}, "value"),
        Input("axis", "value"),
        Input("busy", "data"),
        State("asked", "data"),
    )
    app.callback(
        Output("trajectory", "figure"),
        Output("plane", "figure"),
        Output("plane-title", "children"),
        Output("diagram", "figure"),
        Output("sentence", "children"),
        Output("link", "href"),
        Output("shown", "data"),
        Input("asked", "data"),
        State("shown", "data"),
        running=[
            (Output("busy", "data"), True, False),
            (Output("computing", "children"), "Computing …", ""),
        ],
    )(_moved)


def _chosen(system: Any, clicks: Any, search: Any) -> tuple[Any, ...]:
    """The sliders of an equation: at the start where the address says, later as usual."""
    asked = {} if ctx.triggered_id in ("system", "reset") else from_address(search)
    try:
        here = place(asked.pop("system", system), asked, asked.pop("over", None))
    except ExploreError:
        here = place(next(iter(subjects())), {})  # an address that someone mistyped
    subject = here.subject
    sliders = [_slider(subject, s, here.values[s.name]) for s in subject.sliders]
    return (
        subject.name,
        subject.equation,
        sliders,
        _trajectory_title(subject),
        subject.diagram_title,
        subject.axes,
        here.axis,
    )


def _trajectory_title(subject: Subject) -> list[Any]:
    """With the states in the colours of their curves."""
    states = [
        html.Span(f" {name}", style={"color": COLOURS[colour]})
        for name, colour in zip(subject.states, STATE_COLOURS, strict=False)
    ]
    return ["Trajectory", *states] if len(states) > 1 else ["Trajectory"]


def _moved(asked: Any, shown: Any) -> tuple[Any, ...]:
    if asked is None:
        raise dash.exceptions.PreventUpdate  # the page has no sliders yet
    here = sent(asked)
    seen = view(here)
    if shown == here.diagram_key:
        picture = Patch()
        for i, moved in enumerate(marker(here, seen.here)):
            for key, numbers in moved.items():
                picture["data"][i][key] = numbers
    else:
        picture = diagram(here, seen.here)
    return (
        seen.trajectory,
        seen.plane,
        seen.plane_title,
        picture,
        seen.sentence,
        to_address(here),
        dash.no_update if shown == here.diagram_key else here.diagram_key,
    )


def sent(asked: Any) -> Place:
    """Where the sliders of a request are."""
    sliders = asked["sliders"]
    names = {of for of, _, _ in sliders}
    values = {name: value for _, name, value in sliders}
    # Between two equations there are sliders of none or of both. An empty box next to a slider is
    # one in which someone is about to type.
    if len(names) != 1 or any(value is None for value in values.values()):
        raise dash.exceptions.PreventUpdate
    return place(names.pop(), values, asked["axis"])


def to_address(here: Place) -> str:
    state = {"system": here.subject.name, **here.values, "over": here.axis}
    return f"?{urllib.parse.urlencode(state)}"


def from_address(search: Any) -> dict[str, Any]:
    """What an address says: texts, and numbers where there are any."""
    if not isinstance(search, str) or len(search) > 1000:
        return {}
    found: dict[str, Any] = {}
    for key, text in urllib.parse.parse_qsl(search.lstrip("?"), max_num_fields=None):
        try:
            found[key] = float(text)
        except ValueError:
            found[key] = text
    return found


# --- who may ask ----------------------------------------------------------------------------------


def guard(app: Dash, port: int, token: str) -> None:
    """Answers this user's own browser on this page, and nobody else.

    Binding to loopback keeps other machines out, and the token in the address other users of this
    one. Pages of other sites in the same browser are kept out by their `Origin`; those that have
    their own name resolve to this address, by their `Host`.
    """
    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
    hosts |= {HOST, "localhost"} if port == 80 else set()
    origins = {f"http://{host}" for host in hosts}
    server: Flask = app.server
    # The browser makes sure of what the page promises: nothing is sent anywhere else.
    policy = (
        f"default-src 'self'; script-src 'self' {' '.join(app.csp_hashes())}; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
    )

    @server.before_request
    def refuse_strangers() -> Response | None:
        headers = request.headers
        visit = headers.get("Sec-Fetch-Mode") == "navigate" and request.method == "GET"
        known = headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin") or visit
        given = request.path.partition("/")[2].partition("/")[0]
        own = headers.get("Host") in hosts and headers.get("Origin") in {None, *origins}
        if not (own and known):
            return _refusal("This page answers its own machine alone.")
        if not secrets.compare_digest(given.encode(), token.encode()):
            return _refusal("Open the whole address that `lagrax explore` has printed.")
        return None

    @server.after_request
    def add_headers(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        return response


def _refusal(sentence: str) -> Response:
    return Response(f"{sentence}\n", 403, mimetype="text/plain")


def _answer_errors(server: Flask) -> None:
    """Requests that this page did not make are refused in a sentence, without a traceback."""

    @server.errorhandler(ExploreError)
    def refused(error: ExploreError) -> Response:
        return Response(f"{error}\n", 400, mimetype="text/plain")

    @server.errorhandler(Exception)
    def unreadable(error: Exception) -> Response | HTTPException:
        if isinstance(error, HTTPException):
            return error
        what = f"The request cannot be answered: {type(error).__name__}: {error!s:.200}\n"
        return Response(what, 400, mimetype="text/plain")


# --- the server -----------------------------------------------------------------------------------


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


def make_page_server(port: int = 0) -> tuple[BaseWSGIServer, str]:
    """The server of the page, on loopback alone, and the page's address; port 0 is any that is
    free."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Werkzeug would end the process where a port is taken, so the socket comes from here.
        listening.bind((HOST, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        raise ExploreError(
            f"--port {port}: {getattr(error, 'strerror', None) or error}. Give another, or none "
            "for one that is free."
        ) from None
    token = secrets.token_urlsafe(24)
    app = make_app(token)
    port = listening.getsockname()[1]
    guard(app, port, token)
    server = make_server(
        HOST,
        port,
        app.server,
        threaded=True,
        request_handler=_Quiet,
        fd=listening.fileno(),
    )
    listening.close()
    return server, f"http://{HOST}:{port}/{token}/"


@contextlib.contextmanager
def _leading_to(address: str) -> Iterator[str]:
    """The address of a file that leads a browser to `address`, and that no other user can read.
    They can read the commands that run, and `address` would be part of the browser's."""
    with tempfile.TemporaryDirectory(prefix="lagrax-") as folder:
        path = Path(folder) / "explore.html"
        target = markup.escape(address)
        path.write_text(
            '<!doctype html><meta charset="utf-8"><title>lagrax explore</title>'
            '<meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">Open</a>\n',
            encoding="utf-8",
        )
        yield path.as_uri()


def explore(port: int = 0, browser: bool = True) -> None:
    """Serves the page until it is interrupted."""
    server, address = make_page_server(port)
    with _leading_to(address) as opened:
        print(f"Exploring at {address} (Ctrl-C ends it)", flush=True)
        threading.Thread(target=_compile_ahead, daemon=True).start()
        if browser:
            threading.Thread(target=webbrowser.open, args=(opened,), daemon=True).start()
        server.serve_forever()
    raise KeyboardInterrupt  # which werkzeug has kept to itself


def _compile_ahead() -> None:
    """The page's first view is computed while the browser starts. Each other lag is a program of
    its own, and ready before someone gets to that slider."""
    first = place("population", {})
    diagram(first, view(first).here)
    lags = next(s for s in first.subject.sliders if s.name == "lag")
    for lag in range(1, int(lags.high) + 1):
        compile_for(place("population", {"lag": lag, "a": 0.5}))

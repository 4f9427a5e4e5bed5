"""Serves the page of `lagrax explore`, on which sliders move an equation, to this user alone."""

import contextlib
import html as markup
import json
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
from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, Patch, State, ctx, dcc, html
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from .. import plotting
from ..plotting import COLOURS
from .explore_sliders import (
    SYMBOLS,
    ExploreError,
    ExplorerEquation,
    ExplorerState,
    Slider,
    equations,
    make_state,
)
from .explore_view import STATE_COLOURS, compile_for, make_diagram, make_marker, make_view

HOST = "127.0.0.1"

# The colours of all pages.
_PALETTE = Path(plotting.__file__).with_name("templates") / "colours.css"

# A request holds some twenty numbers.
_LARGEST_REQUEST = 64 * 1024

_WAITING = (
    "Compiling the equation takes some seconds the first time. After that the plots follow each "
    "move at once."
)


# --- the page -------------------------------------------------------------------------------------


class _Page(Dash):
    def interpolate_index(self, *parts: Any, **named: Any) -> str:
        # Removes the address at which Dash's developer tools would ask for newer versions.
        named["config"] = re.sub(r'https?:[^"]*', "", named["config"])
        named["css"] = f"<style>{_PALETTE.read_text(encoding='utf-8')}</style>\n{named['css']}"
        return super().interpolate_index(*parts, **named).replace("<html>", '<html lang="en">')


def make_app(token: str) -> Dash:
    """Makes the page. Everything that it requests has an address below /TOKEN/, too."""
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
        suppress_callback_exceptions=True,  # a callback adds the sliders
        meta_tags=[{"name": "referrer", "content": "no-referrer"}],
    )
    app.layout = _layout()
    _add_callbacks(app)
    app.server.config["MAX_CONTENT_LENGTH"] = _LARGEST_REQUEST
    _answer_errors(app.server)
    return app


def _layout() -> html.Div:
    first = next(iter(equations()))
    options = [{"label": e.title, "value": e.name} for e in equations().values()]
    controls = [
        html.H2("Equation", id="system-label"),
        dcc.Dropdown(options, first, id="system", clearable=False, searchable=False),
        html.P(id="equation", className="equation"),
        html.P(id="refused-address", className="refusal", role="alert"),
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
                        "Move a slider, by hand or with the arrow keys, or type a value. Nothing "
                        "leaves this machine."
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


def _show_slider(state: ExplorerState, slider: Slider) -> html.Div:
    """A slider with a box for its value. The box is our own: Dash's moves a value into the range
    without a word."""
    low, high = state.ranges[slider.name]
    value = state.values[slider.name]
    made = lambda part: {"of": state.equation.name, "name": slider.name, "part": part}
    box = made("box")
    moved = dcc.Slider(
        low,
        high,
        slider.step,
        value=value,
        marks={low: f"{low:g}", high: f"{high:g}"},
        id=made("slider"),
        updatemode="drag",
        allow_direct_input=False,
    )
    typed = dcc.Input(
        f"{value:.12g}", "text", debounce=True, id=box, className="value", autoComplete="off"
    )
    limits = {"name": slider.symbol, "least": slider.least, "most": slider.most}
    limits |= {"whole": slider.is_whole, "hint": _hint(state.equation, slider)}
    label = html.Label(
        [f"{slider.symbol} ", html.Span(slider.about, className="about")],
        # Dash writes the id of an element this way.
        htmlFor=json.dumps(box, sort_keys=True, separators=(",", ":")),
    )
    return html.Div(
        [
            label,
            html.Div([moved, typed], className="slider-row"),
            html.P(id=made("refusal"), className="refusal", role="alert"),
            dcc.Store(id=made("limits"), data=limits),
        ],
        className="slider",
        role="group",
        **_aria(label=f"{slider.symbol}, {slider.about}"),
    )


def _hint(equation: ExplorerEquation, slider: Slider) -> str:
    if slider.name in ("start", "lag"):
        return ""
    return f"Use lagrax simulate {equation.name} --{slider.name} for other values."


# --- callbacks ------------------------------------------------------------------------------------


def _add_callbacks(app: Dash) -> None:
    app.callback(
        Output("system", "value"),
        Output("equation", "children"),
        Output("sliders", "children"),
        Output("trajectory-title", "children"),
        Output("diagram-title", "children"),
        Output("axis", "options"),
        Output("axis", "value"),
        Output("refused-address", "children"),
        Input("system", "value"),
        Input("reset", "n_clicks"),
        Input("url", "search"),
    )(_choose_equation)
    part = lambda which, name=MATCH, of=MATCH: {"of": of, "name": name, "part": which}
    app.clientside_callback(
        ClientsideFunction("explore", "settle"),
        Output(part("slider"), "value"),
        Output(part("slider"), "min"),
        Output(part("slider"), "max"),
        Output(part("slider"), "marks"),
        Output(part("box"), "value"),
        Output(part("refusal"), "children"),
        Input(part("slider"), "value"),
        Input(part("box"), "value"),
        State(part("slider"), "min"),
        State(part("slider"), "max"),
        State(part("limits"), "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("explore", "ask"),
        Output("asked", "data"),
        Input(part("slider", ALL, ALL), "value"),
        Input(part("slider", ALL, ALL), "min"),
        Input(part("slider", ALL, ALL), "max"),
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
    )(_update_plots)


def _choose_equation(system: Any, clicks: Any, search: Any) -> tuple[Any, ...]:
    """The sliders of an equation, at the values in the address when the page opens and at their
    usual ones later."""
    asked = {} if ctx.triggered_id in ("system", "reset") else parse_address(search)
    refusal = ""
    try:
        state = make_state(asked.pop("system", system), asked, asked.pop("over", None))
    except ExploreError as error:
        state = make_state(next(iter(equations())), {})
        refusal = f"The address is refused. {error}"
    equation = state.equation
    return (
        equation.name,
        equation.formula,
        [_show_slider(state, slider) for slider in equation.sliders],
        _trajectory_title(equation),
        equation.diagram_title,
        [{"label": SYMBOLS.get(name, name), "value": name} for name in equation.axes],
        state.axis,
        refusal,
    )


def _trajectory_title(equation: ExplorerEquation) -> list[Any]:
    """The title with the names of the states in the colours of their curves."""
    states = [
        html.Span(f" {name}", style={"color": COLOURS[colour]})
        for name, colour in zip(equation.states, STATE_COLOURS, strict=False)
    ]
    return ["Trajectory", *states] if len(states) > 1 else ["Trajectory"]


def _update_plots(asked: Any, shown: Any) -> tuple[Any, ...]:
    if asked is None:
        raise dash.exceptions.PreventUpdate  # the page has no sliders yet
    state = read_request(asked)
    view = make_view(state)
    if shown == state.diagram_key:
        picture = Patch()
        for i, moved in enumerate(make_marker(state, view.here)):
            for key, numbers in moved.items():
                picture["data"][i][key] = numbers
    else:
        picture = make_diagram(state, view.here)
    return (
        view.trajectory,
        view.plane,
        view.plane_title,
        picture,
        view.sentence,
        to_address(state),
        dash.no_update if shown == state.diagram_key else state.diagram_key,
    )


def read_request(asked: Any) -> ExplorerState:
    """The state of the sliders that a request describes."""
    sliders = asked["sliders"]
    names = {of for of, *_ in sliders}
    # While the equation changes, the page has the sliders of both or of none.
    if len(names) != 1:
        raise dash.exceptions.PreventUpdate
    values = {name: value for _, name, value, _, _ in sliders}
    ranges = {name: (low, high) for _, name, _, low, high in sliders}
    return make_state(names.pop(), values, asked["axis"], ranges)


def to_address(state: ExplorerState) -> str:
    """The part of an address that leads back to `state`."""
    query = {"system": state.equation.name, **state.values, "over": state.axis}
    return f"?{urllib.parse.urlencode(query)}"


def parse_address(search: Any) -> dict[str, Any]:
    """The entries of an address, as numbers if they are, else as texts."""
    if not isinstance(search, str) or len(search) > 1000:
        return {}
    found: dict[str, Any] = {}
    for key, text in urllib.parse.parse_qsl(search.lstrip("?"), max_num_fields=None):
        try:
            found[key] = float(text)
        except ValueError:
            found[key] = text
    return found


# --- access ---------------------------------------------------------------------------------------


def guard(app: Dash, port: int, token: str) -> None:
    """Answers requests of this user's browser on this page, and refuses all others.

    The server listens on loopback, so other machines do not reach it. Other users of this machine
    lack the token in the address. Pages of other sites in the same browser have another `Origin`,
    or another `Host` if their name resolves to this machine.
    """
    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
    hosts |= {HOST, "localhost"} if port == 80 else set()
    origins = {f"http://{host}" for host in hosts}
    server: Flask = app.server
    # The page promises to send nothing anywhere else; the policy makes the browser enforce it.
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
            return _refuse("This page answers requests from its own machine only.")
        if not secrets.compare_digest(given.encode(), token.encode()):
            return _refuse("Open the complete address that `lagrax explore` printed.")
        return None

    @server.after_request
    def add_headers(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        return response


def _refuse(sentence: str) -> Response:
    return Response(f"{sentence}\n", 403, mimetype="text/plain")


def _answer_errors(server: Flask) -> None:
    """Answers malformed requests by one sentence instead of a traceback."""

    @server.errorhandler(ExploreError)
    def answer_error(error: ExploreError) -> Response:
        return Response(f"{error}\n", 400, mimetype="text/plain")

    @server.errorhandler(Exception)
    def answer_malformed(error: Exception) -> Response | HTTPException:
        if isinstance(error, HTTPException):
            return error
        what = f"The request cannot be answered: {type(error).__name__}: {error!s:.200}\n"
        return Response(what, 400, mimetype="text/plain")


# --- the server -----------------------------------------------------------------------------------


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


def make_page_server(port: int = 0) -> tuple[BaseWSGIServer, str]:
    """Makes the server of the page, on loopback, and returns it with the page's address. Port 0
    takes a free port."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Werkzeug ends the process if the port is in use, so the socket is opened here.
        listening.bind((HOST, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        raise ExploreError(
            f"--port {port}: {getattr(error, 'strerror', None) or error}. Give another port, or "
            "none to take a free one."
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
def _redirect_file(address: str) -> Iterator[str]:
    """The address of a file that redirects a browser to `address` and that other users cannot read.
    They can read the browser's command line, which would otherwise hold the token."""
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
    with _redirect_file(address) as opened:
        print(f"Exploring at {address} (Ctrl-C ends it)", flush=True)
        threading.Thread(target=_compile_ahead, daemon=True).start()
        if browser:
            threading.Thread(target=webbrowser.open, args=(opened,), daemon=True).start()
        server.serve_forever()
    raise KeyboardInterrupt  # werkzeug swallows it


def _compile_ahead() -> None:
    """Computes the first view while the browser starts. Each lag is a program of its own, which is
    compiled before someone moves that slider."""
    first = make_state("population", {})
    make_diagram(first, make_view(first).here)
    lags = next(s for s in first.equation.sliders if s.name == "lag")
    for lag in range(1, int(lags.high) + 1):
        compile_for(make_state("population", {"lag": lag, "a": 0.5}))

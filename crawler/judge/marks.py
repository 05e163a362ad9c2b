"""The marks by which rules know a page: phrases in many languages, and signs of wall vendors."""

import re
from collections.abc import Iterator

import msgspec
import re2


def _list(text: str) -> tuple[str, ...]:
    """Split a text at its semicolons; line breaks count as spaces."""
    return tuple(" ".join(phrase.split()) for phrase in text.split(";"))


ROBOT = _list("""
    just a moment; are you a robot; robot check; not a robot; you are human; you're human;
    you are not a bot; human verification; security check; robot or human; unusual traffic;
    unusual activity; one more step; you are a human; verify your browser; checking your browser;
    security verification; bot verification; complete the captcha; characters you see;
    automated access; nur einen moment; kein roboter; ein mensch sind; sicherheitsabfrage;
    sicherheitsüberprüfung; zeichen aus dem bild; ungewöhnlichen datenverkehr; un instant;
    pas un robot; êtes humain; vérification de sécurité; contrôle de sécurité; trafic inhabituel;
    un momento; no eres un robot; no es un robot; eres humano; verificación de seguridad;
    tráfico inusual; один момент; не робот; подтвердите, что; вы человек; проверка безопасности;
    подозрительная активность; един момент; не сте робот; сте човек; проверка за сигурност;
    um momento; não é um robô; você é humano; verificação de segurança; tráfego incomum;
    even geduld; geen robot
""")
"""Titles and sentences of challenges."""
REFUSED = _list("""
    access denied; access blocked; access to this page has been denied; request rejected;
    request blocked; you have been blocked; access forbidden; forbidden; attention required;
    zugriff verweigert; zugriff gesperrt; accès refusé; accès bloqué; votre accès a été bloqué;
    acceso denegado; acceso bloqueado; доступ запрещен; доступ запрещён; доступ заблокирован;
    достъпът е отказан; отказан достъп; acesso negado; acesso bloqueado; blocked
""")
"""Titles of refusals."""
REFUSED_WHY = _list("""
    your ip address has been; your ip has been; ip address has been blocked; automated access;
    identified as a bot; bot or scraper; suspicious activity; detected unusual; flagged as a bot;
    blocked by the site; blocked for security; ihre ip-adresse; automatisierte zugriffe;
    votre adresse ip; activité suspecte; su dirección ip; actividad sospechosa; ваш ip; ip-адрес;
    вашият ip; ip адрес; seu endereço ip; atividade suspeita; has been banned; scraping is not
""")
"""Reasons that refusals give."""
RATE_LIMITED = _list("""
    too many requests; rate limit exceeded; rate limit reached; rate limited;
    request limit exceeded; exceeded the maximum number of; exceeded your quota;
    too many searches; too many queries; exceeded the number of; exceeded the limit of;
    requests per minute exceeded; slow down; zu viele anfragen; anzahl der anfragen überschritten;
    abfragelimit; trop de requêtes; trop grand nombre de requêtes; limite de requêtes;
    demasiadas solicitudes; demasiadas peticiones; número máximo de consultas;
    límite de solicitudes; слишком много запросов; превышен лимит запросов; твърде много заявки;
    превишен лимит; muitas solicitações; muitas requisições; demasiados pedidos;
    limite de solicitações; limite de requisições
""")
MAINTENANCE = _list("""
    under maintenance; scheduled maintenance; site maintenance; maintenance mode;
    down for maintenance; undergoing maintenance; maintenance in progress; we'll be back soon;
    we will be back soon; be right back; temporarily unavailable; temporarily offline;
    system maintenance; maintenance; planned maintenance; offline; wartungsarbeiten;
    wartungsmodus; wegen wartung; im wartung; wir sind gleich zurück; wir sind bald zurück;
    vorübergehend nicht verfügbar; wartung; en maintenance; cours de maintenance;
    maintenance en cours; site indisponible; de retour bientôt; temporairement indisponible;
    en mantenimiento; tareas de mantenimiento; volveremos pronto; temporalmente no disponible;
    por mantenimiento; технические работы; технических работ; техническое обслуживание;
    техническом обслуживании; временно недоступен; профилактика; профилактические работы;
    сайтът е в процес на поддръжка; в процес на поддръжка; техническа поддръжка;
    технически причини; временно недостъпен; em manutenção; manutenção programada;
    voltamos em breve; voltaremos em breve; temporariamente indisponível; site em manutenção
""")
"""Titles of maintenance pages."""
MAINTENANCE_SAYS = _list("""
    check back; back soon; back online; be back; scheduled maintenance; performing some;
    try again; unavailable for; currently unavailable; sorry for the inconvenience; apologize for;
    apologise for; come back later; will return; will be available; nicht zur verfügung;
    nicht verfügbar; nicht erreichbar; wir bitten um verständnis; in kürze wieder; später erneut;
    später noch einmal; indisponible; revenir un peu plus tard; de retour; gêne occasionnée;
    réessayer plus tard; volverá a estar; disculpe las molestias; disculpen las molestias;
    más tarde; no está disponible; приносим извинения; будет доступен; ведутся; попробуйте позже;
    зайдите позже; опитайте по-късно; извиняваме се; в момента се извършва; voltamos;
    volte mais tarde; pedimos desculpa; em breve; down for; under maintenance; we are working;
    we're working
""")
"""What maintenance pages say below their title."""
LOGIN = _list("""
    log in; login; sign in; sign-in; log on; logon; signin; authentication required; member login;
    anmelden; anmeldung; einloggen; melden sie sich an; connexion; se connecter; identifiez-vous;
    connectez-vous; iniciar sesión; inicio de sesión; inicia sesión; acceder; вход; войти;
    авторизация; авторизуйтесь; влез; entrar; iniciar sessão; fazer login; acessar; inloggen;
    accedi
""")
"""Titles of login pages."""
LOGIN_SAYS = _list("""
    you must be logged in; you must log in; you need to log in; you need to be logged in;
    please log in to; please login to; please sign in to; sign in to continue; log in to continue;
    please log in again; session has expired; session expired; sitzung ist abgelaufen;
    session a expiré; sesión ha expirado; sessão expirou; сессия истекла; сесията е изтекла;
    you must sign in; login is required; login required; only available to registered;
    only available to members; sie müssen angemeldet sein; sie müssen sich anmelden;
    bitte melden sie sich an; nur für registrierte; nur für angemeldete; vous devez être connecté;
    vous devez vous connecter; veuillez vous connecter; réservé aux abonnés connectés;
    debe iniciar sesión; debes iniciar sesión; inicie sesión para; necesitas iniciar sesión;
    необходимо войти; необходимо авторизоваться; войдите, чтобы; авторизуйтесь, чтобы;
    требуется авторизация; трябва да влезете; моля, влезте; трябва да се регистрирате;
    você precisa fazer login; faça login para; é necessário fazer login; precisa estar conectado;
    tem de iniciar sessão
""")
"""Sentences that ask for a login."""
CONSENT = _list("""
    before you continue; disclaimer; terms of use; terms and conditions; your privacy;
    privacy settings; privacy choices; cookie consent; cookies; family of brands;
    age verification; legal drinking age; are you over 18; are you over 21; adults only;
    we value your privacy; user agreement; acceptable use; zustimmung; datenschutzeinstellungen;
    pur-abo; mit werbung; haftungsausschluss; nutzungsbedingungen; bevor sie fortfahren;
    vie privée; avant de continuer; avant d'accéder; conditions d'utilisation; antes de continuar;
    su privacidad; tu privacidad; aviso legal; términos de uso; condiciones de uso; согласие;
    прежде чем продолжить; условия использования; съгласие; условия за ползване;
    преди да продължите; sua privacidade; termos de uso; toestemming
""")
"""Titles of pages that ask for consent."""
CONSENT_SAYS = _list("""
    we use cookies; we and our; our partners; use cookies and data; by clicking;
    accept these terms; accept the terms; agree to the terms; agree to these terms; must be 18;
    must be 21; over 18; 18 or over; legal age; you must accept; ihre zustimmung; unsere partner;
    und bis zu; tracking; wir verwenden cookies; stimmen sie; mit der nutzung; avec votre accord;
    nos partenaires; des cookies; acceptez les; en cliquant; utilizamos cookies; usamos cookies;
    nuestros socios; al hacer clic; acepta los; мы используем; нажимая; используем файлы cookie;
    използваме бисквитки; с натискането; nossos parceiros; ao clicar; cookies met uw toestemming;
    makes no warranty; no warranty; not the official record; at their own risk;
    assumes no liability
""")
CONSENT_BUTTONS = _list("""
    accept; i agree; agree; accept all; consent; i understand; allow all; reject all; yes, i;
    akzeptieren; zustimmen; einverstanden; accepter; j'accepte; aceptar; acepto; принять;
    согласен; принимаю; приемам; съгласен; aceitar; aceito; concordo; akkoord; over 18; enter
""")
TERMS = _list("""
    disclaimer; terms of use; terms and conditions; user agreement; acceptable use;
    haftungsausschluss; nutzungsbedingungen; conditions d'utilisation; aviso legal;
    términos de uso; condiciones de uso; условия использования; условия за ползване; termos de uso
""")
COOKIE_BUTTONS = _list("""
    cookie; accept all; reject all; allow all; alle akzeptieren; alles akzeptieren; tout accepter;
    accepter tout; aceptar todo; принять все; приемам всички; aceitar tudo; aceitar todos
""")
"""Buttons of cookie banners, which many good pages have."""
CONSENT_LINKS = _list("""
    accept; i accept; i agree; agree; akzeptieren; zustimmen; accepter; j'accepte; aceptar;
    acepto; принять; принимаю; приемам; aceitar; aceito; concordo; akkoord; yes, i
""")
"""How links begin that are consent buttons."""
CONSENT_PLACES = _list("""
    consent; disclaimer; zustimmung; collectconsent; privacy-gate; agegate; age-gate; terms
""")
"""Hosts and paths of consent pages."""
LOGIN_PLACES = _list("""
    login; log-in; signin; sign_in; sign-in; logon; /auth; /sso; /saml; oauth; /cas/; anmelden;
    connexion; account/begin
""")
"""Hosts and paths of login pages."""
ABOUT = _list("""
    policy; how to; guide; tutorial; richtlinie; erklärung; politique de; política de; политика;
    examples; recipe; review; history
""")
"""Words of titles that speak about walls."""
ERROR = _list("""
    internal server error; server error; something went wrong; an error has occurred;
    an error occurred; application error; unexpected error; bad gateway; gateway timeout;
    service unavailable; error establishing a database connection; database error; runtime error;
    fatal error; system error; unhandled exception; critical error on this website;
    http status 500; http error 500; error 500; 500 error; website error; wordpress › error;
    exception report; server error in; error occurred while processing; we're having trouble;
    technical difficulties; could not process your request; oops; 502; 500; 504;
    ein fehler aufgetreten; fehler aufgetreten; interner serverfehler; technischer fehler; fehler;
    une erreur est survenue; une erreur s'est produite; erreur interne; erreur serveur; erreur;
    ha ocurrido un error; se ha producido un error; error interno; algo salió mal;
    algo ha ido mal; произошла ошибка; внутренняя ошибка; ошибка сервера; что-то пошло не так;
    ошибка; възникна грешка; вътрешна грешка; грешка в сървъра; нещо се обърка; грешка;
    ocorreu um erro; erro interno; algo deu errado; erro inesperado; erro; error
""")
"""Titles of error pages."""
ERROR_SAYS = _list("""
    please try again; try again later; has been notified; unexpected condition;
    error has occurred; error occurred; critical error; contact the administrator;
    contact support; unable to process; contact the website; could not be processed;
    database connection; stack trace; exception; konnte; versuchen sie es; technischen fehlers;
    réessayer; veuillez réessayer; inténtelo de nuevo; inténtalo de nuevo; más tarde; попробуйте;
    повторите; опитайте; свържете се; tente novamente; mais tarde; não foi possível; nginx;
    apache; openresty; internal server error; internal error; cloudflare
""")
TRACES = (
    ("server error in '", "stack trace"),
    ("server error in '", "runtime error"),
    ("fatal error: uncaught", "stack trace"),
    ("fatal error : uncaught", "stack trace"),
    ("fatal error", "on line"),
    ("parse error", "on line"),
    ("traceback (most recent call last)", 'file "'),
    ("you're seeing this error because you have debug = true", ""),
    ("exception report", "apache tomcat"),
    ("exception report", "javax.servlet"),
    ("whitelabel error page", ""),
    ("upstream connect error or disconnect/reset", ""),
    ("microsoft ole db provider", "error '"),
    ("microsoft vbscript runtime error", ""),
    ("odbc driver", "error '"),
    ("sqlstate[", "pdoexception"),
    ("application error: a client-side exception has occurred", ""),
    ("application error: a server-side exception has occurred", ""),
    (
        "the web application you are attempting to access on this web server "
        "is currently unavailable",
        "",
    ),
)
"""What only a failed program says, with what must be there too."""
GONE = _list("""
    page not found; page cannot be found; page could not be found; page can't be found;
    can't find that page; page you requested was not found; page doesn't exist;
    page does not exist; page isn't available; we couldn't find that page;
    we couldn't find the page; we can't find the page; file not found; 404 not found; not found;
    error 404; 404 error; http 404; 404; nothing found; no longer available; no longer exists;
    has been removed; listing unavailable; does not exist; page unavailable; seite nicht gefunden;
    seite wurde nicht gefunden; seite existiert nicht; nicht gefunden; fehler 404;
    page introuvable; page non trouvée; introuvable; n'existe pas; erreur 404;
    n'est plus disponible; página no encontrada; no encontrado; no encontrada;
    la página que buscas no existe; no existe; ya no está disponible; страница не найдена;
    не найдена; не найден; ошибка 404; не существует; страницата не е намерена;
    страницата не съществува; не е намерен; не съществува; грешка 404; página não encontrada;
    não encontrada; não encontrado; não existe; erro 404; não está mais disponível;
    pagina niet gevonden; pagina non trovata; nicht mehr verfügbar; nicht mehr online;
    existiert nicht mehr; n'est plus en ligne; n'existe plus; ya no existe; больше не доступн;
    снято с публикации; удалено; вече не е активна; вече не съществува; não está disponível;
    já não existe; is no longer active; listing has expired; has been deleted; page has moved;
    page removed; record not available
""")
"""Titles of pages that are not there."""
GONE_SAYS = _list("""
    page you are looking for; page you're looking for; page you requested; may have been moved;
    been moved or; does not exist; doesn't exist; was not found; could not be found;
    has been removed; no longer available; no longer exists; not find; has expired;
    existiert nicht; wurde verschoben; nicht gefunden; n'existe; a été supprimée; a été déplacée;
    no existe; sido eliminado; ha sido movida; не существует; неправильно набран; была удалена;
    не съществува; била преместена; não existe; foi removida; verifique o link; nicht mehr;
    back to home; home page; homepage; entfernt; gelöscht; ne correspond; n'est plus; ya no;
    удален; удалён; снят; вече не; já não; no longer active; been deleted; been taken down;
    expired; check the address; check the url
""")
GONE_ENDS = tuple(
    f" {end}"
    for end in _list("""
        not found; not available; no longer available; does not exist; nicht gefunden;
        introuvable; no encontrado; no encontrada; не найден; не найдена; не найдено;
        не е намерен; не е намерена; не е намерено; não encontrado; não encontrada; non trovata;
        niet gevonden
    """)
)
"""How a heading ends that says that a parcel, a listing or a case is not there."""
PARKED = _list("""
    domain is for sale; domain for sale; website is for sale; this site is for sale;
    domain may be for sale; buy this domain; own this domain; domain is parked; parked domain;
    domain name is for sale; domain has expired; domain is registered; future home of;
    is for sale | hugedomains; account suspended; account has been suspended; welcome to nginx;
    apache2 ubuntu default page; apache2 debian default page; iis windows server;
    default web site page; default plesk page; web server's default page; test page for the;
    domain steht zum verkauf; domain ist geparkt; domain zu verkaufen; domain geparkt;
    nom de domaine; domaine est à vendre; domaine à vendre; dominio está en venta;
    dominio en venta; dominio aparcado; домен продается; домен продаётся; домен припаркован;
    домейнът се продава; домейнът е паркиран; домейн за продажба; domínio está à venda;
    domínio à venda; domínio estacionado; is for sale; default page
""")
"""Titles of parked domains."""
PARKED_SAYS = _list("""
    domain is for sale; may be for sale by its owner; buy this domain; sponsored listings;
    related searches; related links; domain parking; parked free; parked with; registered at;
    make an offer; domain expert; hosting provider; web server is successfully installed;
    further configuration; replace this file; operating correctly; kann über unseren marktplatz;
    angebot abgeben; est parqué; domaine vient d'être; aucun site n'est; hacer una oferta;
    oferta por este dominio; сделать предложение; направи оферта; fazer uma oferta; zum verkauf;
    contact the owner; renew
""")
PARKED_MARKUP = _list("""
    sedoparking.com; parkingcrew.net; adsense/domains/caf.js; window.lander_system;
    parking-lander; data-adblockkey; d38psrni17bvxu.cloudfront.net; bodis.com; cdn.dan.com;
    afternic.com/forsale; hugedomains.com; parklogic.com; above.com/park;
    /cgi-sys/suspendedpage.cgi; uniregistry.com/park
""")
WAITING = _list("""
    javascript; java script; loading; wird geladen; chargement; cargando; загрузка; зареждане;
    carregando; please wait; bitte warten; laden
""")
"""What pages say before a script has filled them."""
_ODD_ELSEWHERE = _list("""
    pardon our interruption; access to this site has been limited; vercel security checkpoint
""")
_ALL = frozenset(ROBOT + REFUSED + RATE_LIMITED + MAINTENANCE + LOGIN + CONSENT + ERROR).union(
    GONE, GONE_ENDS, PARKED, _ODD_ELSEWHERE
)
ODD = tuple(sorted(one for one in _ALL if not any(other in one for other in _ALL if other != one)))
"""A page whose title or heading has one of these is examined closely."""
_ODD = re2.compile("|".join(map(re2.escape, ODD)))
"""All of them in one pass over the text; compiled when the process starts."""
_FILLERS = _list("""
    we're sorry; we are sorry; sorry; oops; http; status; error; lo sentimos; désolé; the; this;
    leider; erreur; fehler; ошибка; грешка; erro; please; bitte; website; site; page; our;
    we can't; we couldn't; извините; съжаляваме; desculpe; désolés; members; area; portal; your
""")
"""Words that a title may have beside a phrase."""
MAX_OTHER_LETTERS = 0.3
"""The share of other letters that a title may have and still say only the phrase."""
_SEGMENTS = re.compile(r" [|–—·•‹›»:-] | ?[|‹›»·] ?")
_SIGNS = " .,:;!?¡¿…-–—'\"“”«»()[]#/0123456789"


def is_odd(text: str) -> bool:
    """Whether a text in lower case holds any of the odd phrases."""
    return _ODD.search(text) is not None


def holds(text: str, phrases: tuple[str, ...]) -> str:
    """Return the first of the phrases that the text holds, or an empty string."""
    return next((phrase for phrase in phrases if phrase in text), "")


def says_only(line: str, phrases: tuple[str, ...]) -> str:
    """Return the part of a title or heading that says one of the phrases and hardly anything
    else, or an empty string."""
    for segment in _SEGMENTS.split(line):
        found = [phrase for phrase in phrases if phrase in segment]
        if not found:
            continue
        rest = segment
        for phrase in sorted(found, key=len, reverse=True):
            rest = rest.replace(phrase, " ")
        for filler in _FILLERS:
            rest = rest.replace(filler, " ")
        others = len("".join(rest.split()).strip(_SIGNS))
        if others <= MAX_OTHER_LETTERS * len("".join(segment.split())):
            return segment
    return ""


class Mark(msgspec.Struct, frozen=True):
    """A sign by which a wall is known."""

    sign: str
    name: str
    vendor: str
    also: str = ""
    """What must be there too."""


def _marks(table: str) -> tuple[Mark, ...]:
    """Read a table with lines of verdict, vendor and signs; `+` joins a sign and its `also`."""
    marks = []
    for line in table.strip().splitlines():
        name, vendor, signs = line.strip().split(" | ")
        for each in signs.split("; "):
            sign, _, also = each.partition(" + ")
            marks.append(Mark(sign.strip(), name, vendor.strip("-"), also))
    return tuple(marks)


HEADERS = _marks("""
    captcha | cloudflare | cf-mitigated + challenge
    captcha | aws waf | x-amzn-waf-action + challenge; x-amzn-waf-action + captcha
    captcha | vercel | x-vercel-mitigated + challenge
    blocked | vercel | x-vercel-mitigated + deny
    blocked | sucuri | x-sucuri-block
""")
"""Headers that no good page has, with what is in their values."""
HEADER_NAMES = frozenset(mark.sign for mark in HEADERS)
MARKUP = _marks("""
    captcha | cloudflare | _cf_chl_opt; /orchestrate/chl_page; cf-captcha-container; __cf_chl_
    captcha | cloudflare | jschl-answer; jschl_vc
    captcha | datadome | captcha-delivery.com
    captcha | perimeterx | px-captcha; captcha.px-cdn.net
    captcha | akamai | sec-if-cpt-container; /_sec/cp_challenge; triggerinterstitialchallenge
    captcha | akamai | bm-verify + /_sec/verify
    captcha | aws waf | gokuprops; captchascript.rendercaptcha
    captcha | kasada | ips.js? + kpsdk
    captcha | imperva | _incapsula_resource?swudnsai; distil_r_captcha
    blocked | imperva | _incapsula_resource?cwudnsai
    captcha | vercel | /.well-known/vercel/security/
    captcha | anubis | anubis_challenge
    captcha | sucuri | sucuri_cloudproxy_js
    captcha | ddos-guard | check.ddos-guard.net; /.well-known/ddos-guard/
    captcha | radware | captcha.perfdrive.com; validate.perfdrive.com
    captcha | amazon | /errors/validatecaptcha
    captcha | yandex | /checkcaptcha; /showcaptcha
    captcha | qrator | wl_captcha_form; /__qrator/
""")
"""Found in the markup, not in the words, of a page with little text. No good page has these."""
WORDS = _marks("""
    rate_limited | cloudflare | you are being rate limited + 1015; error code: 1015
    captcha | imperva | pardon our interruption
    captcha | perimeterx | press & hold to confirm you are a human
    captcha | vercel | vercel security checkpoint
    captcha | anubis | making sure you're not a bot
    captcha | cloudflare | checking your browser before accessing + ddos protection by
    captcha | cloudflare | needs to review the security of your connection before proceeding
    blocked | cloudflare | sorry, you have been blocked + ray id
    blocked | cloudflare | used cloudflare to restrict access; error code: 10
    blocked | akamai | errors.edgesuite.net + reference #
    blocked | akamai | you don't have permission to access + reference #
    blocked | imperva | incapsula incident id; powered by imperva + blocked
    blocked | f5 | the requested url was rejected. please consult with your administrator \
        + support id
    blocked | cloudfront | the request could not be satisfied + request blocked
    blocked | sucuri | sucuri website firewall + access denied
    blocked | wordfence | generated by wordfence
    blocked | wordfence | your access to this site has been limited + wordfence
    blocked | modsecurity | not acceptable + mod_security
    blocked | fortinet | web page blocked + attack id; fortiguard + blocked
    blocked | barracuda | you have been blocked + barracuda
    blocked | datadome | access denied by datadome
    blocked | - | blocked by network security
    blocked | imperva | this request was blocked by the security rules
    blocked | azure | request blocked by azure; the request is blocked + azure
    blocked | stackpath | stackpath + blocked
""")
"""Found in the title and words of a page with little other text."""

WIDGETS = (
    ("g-recaptcha", "recaptcha"),
    ("grecaptcha.render", "recaptcha"),
    ("h-captcha", "hcaptcha"),
    ("hcaptcha.render", "hcaptcha"),
    ("cf-turnstile", "turnstile"),
    ("turnstile.render", "turnstile"),
    ("geetest", "geetest"),
    ("arkoselabs.com", "arkose"),
    ("funcaptcha", "arkose"),
    ("frc-captcha", "friendly captcha"),
    ("mtcaptcha", "mtcaptcha"),
    ("smartcaptcha", "yandex"),
    ('name="captcha', ""),
    ('id="captcha', ""),
    ("captcha_code", ""),
    ("/captcha", ""),
)
"""Captchas that a visitor sees, and their vendors. Good pages have them in their forms, too."""


def by_header(headers: dict[str, str]) -> Iterator[tuple[Mark, str]]:
    """Find marks in headers, given by lower-case name; with the evidence."""
    for mark in HEADERS:
        value = headers.get(mark.sign)
        if value is not None and mark.also in value.lower():
            yield mark, f"the header {mark.sign}: {value[:60]}"


def by_markup(markup: str, words: str) -> Iterator[tuple[Mark, str]]:
    """Find marks in lower-case markup that the words do not merely mention; with the evidence."""
    for mark in MARKUP:
        if mark.sign in markup and mark.also in markup and mark.sign not in words:
            yield mark, f"{mark.sign} in the markup, which only a wall of {mark.vendor} has"


def by_words(words: str) -> Iterator[tuple[Mark, str]]:
    """Find marks in lower-case words; with the evidence."""
    for mark in WORDS:
        if mark.sign in words and mark.also in words:
            yield mark, f"it says “{mark.sign}”"


def widget(markup: str) -> tuple[str, str]:
    """Return the first captcha in lower-case markup and its vendor, or empty strings."""
    return next(((sign, vendor) for sign, vendor in WIDGETS if sign in markup), ("", ""))

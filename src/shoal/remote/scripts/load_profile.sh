# shellcheck shell=bash
# Reads what a login shell reads, in its order, and then .bashrc, as Ray does, so that lines meant
# for terminals apply too. The usual profile already reads .bashrc; reading it once is enough, since
# tools such as conda make it slow. There is no terminal, and dotfiles may complain about that:
# what they print is not the command's output.
{
# The files are the user's.
# shellcheck disable=SC1090,SC1091
if [ -r /etc/profile ]; then . /etc/profile; fi
if [ -r ~/.bash_profile ]; then SHOAL_PROFILE=~/.bash_profile
elif [ -r ~/.bash_login ]; then SHOAL_PROFILE=~/.bash_login
else SHOAL_PROFILE=~/.profile; fi
# shellcheck disable=SC1090
if [ -r "$SHOAL_PROFILE" ]; then . "$SHOAL_PROFILE"; fi
# A pattern, in which nothing expands.
# shellcheck disable=SC2016
SHOAL_USUAL='(^|
)[[:blank:]]*if \[ -f (~|"\$HOME)/\.bashrc"? \]; then[[:space:]]+(\.|source) '
# shellcheck disable=SC1090
if [[ -r ~/.bashrc && ! "$(cat "$SHOAL_PROFILE")" =~ $SHOAL_USUAL ]]; then . ~/.bashrc; fi
unset SHOAL_PROFILE SHOAL_USUAL
# These are for terminals: they print, or change exit codes.
trap - DEBUG ERR RETURN
} </dev/null >/dev/null 2>&1
